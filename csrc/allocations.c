/* Tracks which memory holds tensors: what posix_memalign returns to torch's allocator and malloc to
 * gloo's workers. All other calls cost one comparison more, and free one load.
 *
 * The functions run in every thread, inside fork and before main, so there are no locks. An entry
 * is in one of the cells of the bucket chosen by its first page; two blocks of two pages or more
 * cannot begin in the same page. `starts` counts entries by a coarser hash of the first page: zero
 * means that a pointer is not tracked. */
#include "internal.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define PAGE_SHIFT 12 /* only spreads addresses; larger pages work too */
#define BUCKETS 4096u
#define CELLS 16u /* keys of a bucket: two lines */
#define STARTS 65536u

#define BEING_WRITTEN 1u /* not a pointer: those are multiples of 16 */

/* Costs no memory until touched. */
_Alignas(64) static uint64_t keys[BUCKETS][CELLS]; /* the pointer, 0 for none */
static struct entry {
    uint64_t size, born;
    uint32_t version; /* +1 at each write of the cell: reveals a torn read */
    enum taskd_allocation kind;
} entries[BUCKETS][CELLS];
static uint32_t starts[STARTS];

static size_t followed_from = SIZE_MAX; /* bytes; smaller blocks are not tracked */
static uint64_t attempt_number;
/* initial-exec: accessed without a call that could allocate. */
static _Thread_local signed char scratch __attribute__((tls_model("initial-exec")));
/* 0: not checked yet */
static _Thread_local signed char gloo __attribute__((tls_model("initial-exec")));

/* glibc's own names, for allocations while dlsym looks up the real functions or finds none. */
extern void *__libc_malloc(size_t) __attribute__((weak));
extern void __libc_free(void *) __attribute__((weak));
extern void *__libc_realloc(void *, size_t) __attribute__((weak));
extern void *__libc_memalign(size_t, size_t) __attribute__((weak));

static void *no_memory(void)
{
    errno = ENOMEM;
    return NULL;
}

static void *own_malloc(size_t size)
{
    return __libc_malloc != NULL ? __libc_malloc(size) : no_memory();
}

static void own_free(void *block)
{
    if (__libc_free != NULL)
        __libc_free(block);
}

static void *own_realloc(void *block, size_t size)
{
    return __libc_realloc != NULL ? __libc_realloc(block, size) : no_memory();
}

static int own_posix_memalign(void **out, size_t alignment, size_t size)
{
    if (alignment < sizeof(void *) || (alignment & (alignment - 1)) != 0)
        return EINVAL;
    void *block = __libc_memalign != NULL ? __libc_memalign(alignment, size) : NULL;
    if (block == NULL)
        return ENOMEM;
    *out = block;
    return 0;
}

struct functions {
    void *(*malloc)(size_t);
    void (*free)(void *);
    void *(*realloc)(void *, size_t);
    int (*posix_memalign)(void **, size_t, size_t);
};

static void *first_malloc(size_t size);
static void first_free(void *block);
static void *first_realloc(void *block, size_t size);
static int first_posix_memalign(void **out, size_t alignment, size_t size);

static const struct functions own = {own_malloc, own_free, own_realloc, own_posix_memalign};
static struct functions real = {first_malloc, first_free, first_realloc, first_posix_memalign};

/* At the first call, from another constructor or the dynamic linker itself, before there is a
 * second thread. Takes the next library in line: a block must be freed by the allocator that made
 * it, and another one may be preloaded after this library. */
static void resolve(void)
{
    real = own; /* in case dlsym allocates: glibc's uses calloc, not interposed */
    struct functions next;
    *(void **)&next.malloc = dlsym(RTLD_NEXT, "malloc");
    *(void **)&next.free = dlsym(RTLD_NEXT, "free");
    *(void **)&next.realloc = dlsym(RTLD_NEXT, "realloc");
    *(void **)&next.posix_memalign = dlsym(RTLD_NEXT, "posix_memalign");
    /* All from one allocator, or none. */
    if (next.malloc != NULL && next.free != NULL && next.realloc != NULL &&
        next.posix_memalign != NULL)
        real = next;
}

static void *first_malloc(size_t size)
{
    resolve();
    return real.malloc(size);
}

static void first_free(void *block)
{
    resolve();
    real.free(block);
}

static void *first_realloc(void *block, size_t size)
{
    resolve();
    return real.realloc(block, size);
}

static int first_posix_memalign(void **out, size_t alignment, size_t size)
{
    resolve();
    return real.posix_memalign(out, alignment, size);
}

/* ---- the table ------------------------------------------------------------------------------- */

static inline uint32_t *starts_of(uint64_t pointer)
{
    return &starts[pointer >> PAGE_SHIFT & (STARTS - 1)];
}

static inline unsigned bucket_of(uint64_t pointer)
{
    return (unsigned)((pointer >> PAGE_SHIFT) * 0x9E3779B97F4A7C15u >> 52);
}
_Static_assert(BUCKETS == 1u << (64 - 52), "bucket_of keeps as many bits as there are buckets");

/* A block whose bucket is full is not tracked. */
static void enter(enum taskd_allocation kind, void *block, size_t size, uint64_t born)
{
    uint64_t pointer = (uint64_t)(uintptr_t)block;
    unsigned bucket = bucket_of(pointer);
    for (unsigned i = 0; i < CELLS; i++) {
        uint64_t key = 0;
        if (!__atomic_compare_exchange_n(&keys[bucket][i], &key, BEING_WRITTEN, false,
                                         __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            continue;
        struct entry *entry = &entries[bucket][i];
        __atomic_store_n(&entry->version, entry->version + 1, __ATOMIC_RELAXED);
        __atomic_thread_fence(__ATOMIC_RELEASE);
        __atomic_store_n(&entry->size, size, __ATOMIC_RELAXED);
        __atomic_store_n(&entry->born, born, __ATOMIC_RELAXED);
        entry->kind = kind;
        __atomic_fetch_add(starts_of(pointer), 1, __ATOMIC_RELAXED);
        __atomic_store_n(&keys[bucket][i], pointer, __ATOMIC_RELEASE);
        return;
    }
}

/* Remove the block from the table; returns its entry, of size 0 if there was none. */
static struct entry leave(void *block)
{
    uint64_t pointer = (uint64_t)(uintptr_t)block;
    unsigned bucket = bucket_of(pointer);
    for (unsigned i = 0; block != NULL && i < CELLS; i++)
        if (__atomic_load_n(&keys[bucket][i], __ATOMIC_RELAXED) == pointer) {
            struct entry entry = entries[bucket][i];
            __atomic_store_n(&keys[bucket][i], 0, __ATOMIC_RELEASE);
            __atomic_fetch_sub(starts_of(pointer), 1, __ATOMIC_RELAXED);
            return entry;
        }
    return (struct entry){.size = 0};
}

static inline bool may_be_followed(const void *block)
{
    return __builtin_expect(
        __atomic_load_n(starts_of((uint64_t)(uintptr_t)block), __ATOMIC_RELAXED) != 0, 0);
}

int taskd_allocation_of(uint64_t address, uint64_t *base, uint64_t *size, uint64_t *born)
{
    for (unsigned cell = 0; cell < BUCKETS * CELLS; cell++) {
        const uint64_t *key = &keys[cell / CELLS][cell % CELLS];
        uint64_t pointer = __atomic_load_n(key, __ATOMIC_ACQUIRE);
        if (pointer <= BEING_WRITTEN || pointer > address)
            continue;
        const struct entry *entry = &entries[cell / CELLS][cell % CELLS];
        uint32_t version = __atomic_load_n(&entry->version, __ATOMIC_RELAXED);
        uint64_t bytes = __atomic_load_n(&entry->size, __ATOMIC_RELAXED);
        uint64_t stamp = __atomic_load_n(&entry->born, __ATOMIC_RELAXED);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (address - pointer >= bytes || __atomic_load_n(key, __ATOMIC_RELAXED) != pointer ||
            __atomic_load_n(&entry->version, __ATOMIC_RELAXED) != version)
            continue;
        if (base != NULL)
            *base = pointer;
        if (size != NULL)
            *size = bytes;
        if (born != NULL)
            *born = stamp;
        return 1;
    }
    return 0;
}

void taskd_attempt(uint64_t number)
{
    __atomic_store_n(&attempt_number, number, __ATOMIC_RELAXED);
}

void taskd_scratch(int on)
{
    scratch = on != 0;
}

void taskd_allocations_follow(bool on)
{
    size_t from = on ? 2 * (size_t)sysconf(_SC_PAGESIZE) : SIZE_MAX;
    __atomic_store_n(&followed_from, from, __ATOMIC_RELEASE);
}

/* ---- the functions --------------------------------------------------------------------------- */

static inline bool followed(size_t size)
{
    return __builtin_expect(size >= __atomic_load_n(&followed_from, __ATOMIC_RELAXED), 0);
}

static bool in_gloo_worker(void)
{
    if (gloo == 0) {
        char name[16] = "";
        prctl(PR_GET_NAME, name);
        gloo = strcmp(name, "pt_gloo_runloop") == 0 ? 1 : -1;
    }
    return gloo > 0;
}

static void follow(enum taskd_allocation kind, void *block, size_t size)
{
    enter(kind, block, size,
          scratch ? TASKD_SCRATCH : __atomic_load_n(&attempt_number, __ATOMIC_RELAXED));
    if (__builtin_expect(__atomic_load_n(&taskd_poison_armed, __ATOMIC_RELAXED) == (int)kind, 0))
        taskd_poison_allocation(kind, block, size);
}

TASKD_EXPORT void *malloc(size_t size)
{
    if (!followed(size))
        return real.malloc(size);
    void *block = real.malloc(size);
    if (block != NULL && in_gloo_worker())
        follow(TASKD_ALLOCATION_GLOO, block, size);
    return block;
}

TASKD_EXPORT int posix_memalign(void **out, size_t alignment, size_t size)
{
    int rc = real.posix_memalign(out, alignment, size);
    if (rc == 0 && followed(size) && taskd_called_for_tensors(__builtin_return_address(0)))
        follow(TASKD_ALLOCATION_TENSOR, *out, size);
    return rc;
}

TASKD_EXPORT void free(void *block)
{
    if (may_be_followed(block))
        leave(block);
    real.free(block);
}

TASKD_EXPORT void *realloc(void *block, size_t size)
{
    if (!may_be_followed(block))
        return real.realloc(block, size);
    struct entry before = leave(block);
    void *moved = real.realloc(block, size);
    if (moved == NULL && size > 0 && before.size > 0)
        enter(before.kind, block, before.size, before.born); /* failed: the block still exists */
    return moved;
}
