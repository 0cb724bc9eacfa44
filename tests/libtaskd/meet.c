/* For test_damage.py: threads that touch one lost page at the same moment, each with a first write
 * into its own part. Run with libtaskd preloaded:
 *
 *     meet PAGE
 *
 * ends with 0 and the number of damages that were counted, or says what was wrong. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define THREADS 2 /* with the main one; not more than there are processors, or they do not meet */
#define ROUNDS 10000

static char *memory;
static size_t page;
static int ready, gate; /* how often the other threads have arrived; rounds that may begin */

static void write_part(int round, uintptr_t mine)
{
    size_t part = page / THREADS;
    memset(memory + (size_t)round * page + mine * part, (int)mine + 1, part);
}

static void wait_for(const int *counter, int value)
{
    for (int looks = 1; __atomic_load_n(counter, __ATOMIC_ACQUIRE) < value; looks++)
        if (looks % 4096 == 0)
            sched_yield();
}

static void *thread(void *number)
{
    for (int round = 0; round < ROUNDS; round++) {
        __atomic_add_fetch(&ready, 1, __ATOMIC_ACQ_REL);
        wait_for(&gate, round + 1);
        write_part(round, (uintptr_t)number);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int (*attach)(const char *, uint32_t) =
        (int (*)(const char *, uint32_t))dlsym(RTLD_DEFAULT, "taskd_attach");
    int (*poison)(void *) = (int (*)(void *))dlsym(RTLD_DEFAULT, "taskd_poison");
    uint64_t (*damaged)(void) = (uint64_t(*)(void))dlsym(RTLD_DEFAULT, "taskd_damaged");
    int (*memory_register)(int, const uint64_t *, size_t) =
        (int (*)(int, const uint64_t *, size_t))dlsym(RTLD_DEFAULT, "taskd_memory_register");
    if (argc != 2 || attach == NULL || attach(argv[1], 0) != 0)
        return 2;
    page = (size_t)sysconf(_SC_PAGESIZE);
    memory = mmap(NULL, ROUNDS * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t range[] = {(uint64_t)(uintptr_t)memory, ROUNDS * page};
    if (memory == MAP_FAILED || memory_register(1, range, 1) != 0)
        return 2;
    pthread_t threads[THREADS];
    for (uintptr_t i = 1; i < THREADS; i++)
        pthread_create(&threads[i], NULL, thread, (void *)i);
    for (int round = 0; round < ROUNDS; round++) {
        if (poison(memory + (size_t)round * page) != 0)
            return 2;
        wait_for(&ready, (round + 1) * (THREADS - 1));
        __atomic_store_n(&gate, round + 1, __ATOMIC_RELEASE);
        write_part(round, 0);
    }
    for (int i = 1; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (size_t at = 0; at < ROUNDS * page; at++)
        if (memory[at] != (char)(at % page / (page / THREADS) + 1)) {
            fprintf(stderr, "byte %zu of page %zu is %d: what a thread wrote is gone\n", at % page,
                    at / page, memory[at]);
            return 1;
        }
    printf("%llu\n", (unsigned long long)damaged());
    return 0;
}
