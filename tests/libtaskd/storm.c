/* For test_allocations.py: threads allocate, hand blocks to each other and free them as fast as
 * they can, and ask after each step what libtaskd makes of it, while the process forks again and
 * again. Run with libtaskd preloaded:
 *
 *     storm PAGE
 *
 * ends with 0 and "calm", or says what was wrong. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4
#define ROUNDS 40000
#define FORKS 150
#define SHELVES 64

static int (*attach)(const char *, uint32_t);
static int (*allocation_of)(uint64_t, uint64_t *, uint64_t *, uint64_t *);
static void *shelves[SHELVES]; /* blocks on their way from one thread to another */
static int running = THREADS;

static void fail(const char *what, void *block, size_t size)
{
    fprintf(stderr, "%s: %p, %zu bytes\n", what, block, size);
    abort();
}

static uint64_t random_of(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    return *x ^= *x << 17;
}

static void expect(void *block, size_t size)
{
    uint64_t base, bytes;
    /* Nobody else may free it, so its entry is as still as can be. */
    if (allocation_of((uint64_t)(uintptr_t)block + size - 1, &base, &bytes, NULL) != 1)
        fail("not followed", block, size);
    if (base != (uint64_t)(uintptr_t)block || bytes != size)
        fail("followed as something else", (void *)(uintptr_t)base, bytes);
}

static void *thread(void *seed)
{
    uint64_t x = (uint64_t)(uintptr_t)seed * 0x9E3779B97F4A7C15u;
    prctl(PR_SET_NAME, "pt_gloo_runloop");
    for (int i = 0; i < ROUNDS; i++) {
        size_t size = 2 * (size_t)sysconf(_SC_PAGESIZE) + random_of(&x) % 100000;
        char *block = malloc(size);
        if (block == NULL)
            fail("no memory", block, size);
        block[0] = block[size - 1] = 1;
        if (i % 16 == 0)
            expect(block, size);
        if (i % 5 == 0) {
            block = realloc(block, size / 2);
            if (i % 80 == 0 && allocation_of((uint64_t)(uintptr_t)block, NULL, NULL, NULL) != 0)
                fail("still followed after realloc", block, size / 2);
        }
        free(malloc(16 + random_of(&x) % 1000));
        free(__atomic_exchange_n(&shelves[random_of(&x) % SHELVES], block, __ATOMIC_ACQ_REL));
    }
    __atomic_sub_fetch(&running, 1, __ATOMIC_ACQ_REL);
    return NULL;
}

/* In a child, only what a child of a process with threads may do, and what glibc allows besides:
 * malloc and free. */
static void child(void)
{
    for (int i = 0; i < SHELVES; i++)
        free(shelves[i]);
    for (int i = 0; i < 100; i++) {
        char *block = malloc(20000);
        block[19999] = 1;
        free(realloc(block, 40000));
    }
    _exit(0);
}

int main(int argc, char **argv)
{
    attach = (int (*)(const char *, uint32_t))dlsym(RTLD_DEFAULT, "taskd_attach");
    allocation_of = (int (*)(uint64_t, uint64_t *, uint64_t *, uint64_t *))dlsym(
        RTLD_DEFAULT, "taskd_allocation_of");
    if (argc < 2 || attach == NULL || attach(argv[1], 0) != 0)
        return 2;
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, thread, (void *)(i + 1));
    for (int i = 0; i < FORKS && __atomic_load_n(&running, __ATOMIC_ACQUIRE) > 0; i++) {
        pid_t pid = fork();
        if (pid == 0)
            child();
        int status;
        if (waitpid(pid, &status, 0) != pid || status != 0)
            fail("a child ended badly", NULL, (size_t)status);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < SHELVES; i++) {
        void *block = shelves[i];
        free(block);
        if (block != NULL && allocation_of((uint64_t)(uintptr_t)block, NULL, NULL, NULL) != 0)
            fail("still followed after free", block, 0);
    }
    puts("calm");
    return 0;
}
