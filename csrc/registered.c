/* Memory that may lose a page without killing the process: ranges registered by the worker and
 * looked up inside the SIGBUS handler. */
#include "internal.h"

#include <stdlib.h>
#include <sys/mman.h>

struct span {
    uint64_t begin, end;
};

/* Never changed once published, and unmapped only without readers: a handler may be using it. */
struct span_list {
    struct span_list *next; /* of the lists to be unmapped */
    size_t bytes;           /* of this mapping */
    size_t count;
    struct span spans[]; /* ordered, disjoint */
};

static struct {
    pthread_mutex_t lock; /* of writers */
    struct span_list *current[TASKD_MEMORY_SHARED + 1];
    struct span_list *replaced; /* lists that a reader may still hold */
    uint32_t readers;
} registered = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int by_begin(const void *a, const void *b)
{
    uint64_t left = ((const struct span *)a)->begin, right = ((const struct span *)b)->begin;
    return left < right ? -1 : left > right;
}

static void order_and_join(struct span_list *list)
{
    bool ordered = true;
    for (size_t i = 1; i < list->count && ordered; i++)
        ordered = list->spans[i - 1].begin <= list->spans[i].begin;
    if (!ordered)
        qsort(list->spans, list->count, sizeof list->spans[0], by_begin);
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++) {
        struct span span = list->spans[i];
        if (kept > 0 && span.begin <= list->spans[kept - 1].end) {
            if (span.end > list->spans[kept - 1].end)
                list->spans[kept - 1].end = span.end;
        } else {
            list->spans[kept++] = span;
        }
    }
    list->count = kept;
}

static int span_list_make(const uint64_t *ranges, size_t n, struct span_list **out)
{
    size_t bytes = sizeof(struct span_list) + n * sizeof(struct span);
    struct span_list *list =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (list == MAP_FAILED)
        return -errno;
    list->bytes = bytes;
    for (size_t i = 0; i < n; i++) {
        uint64_t begin = ranges[2 * i], length = ranges[2 * i + 1];
        if (length > UINT64_MAX - begin) {
            munmap(list, bytes);
            return -EINVAL;
        }
        if (length > 0)
            list->spans[list->count++] = (struct span){begin, begin + length};
    }
    order_and_join(list);
    *out = list;
    return 0;
}

/* With the lock held. */
static void unmap_replaced(void)
{
    while (registered.replaced != NULL) {
        struct span_list *list = registered.replaced;
        registered.replaced = list->next;
        munmap(list, list->bytes);
    }
}

int taskd_memory_register(int kind, const uint64_t *ranges, size_t n)
{
    if ((kind != TASKD_MEMORY_TENSORS && kind != TASKD_MEMORY_SHARED) ||
        (ranges == NULL && n > 0) || n > SIZE_MAX / 2 / sizeof(struct span))
        return -EINVAL;
    struct span_list *list = NULL;
    int rc = n > 0 ? span_list_make(ranges, n, &list) : 0;
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&registered.lock);
    struct span_list *old = registered.current[kind];
    __atomic_store_n(&registered.current[kind], list, __ATOMIC_SEQ_CST);
    if (old != NULL) {
        old->next = registered.replaced;
        registered.replaced = old;
    }
    /* Readers that count themselves in from now on find the new list. Readers are rare, so lists do
     * not pile up. */
    if (__atomic_load_n(&registered.readers, __ATOMIC_SEQ_CST) == 0)
        unmap_replaced();
    pthread_mutex_unlock(&registered.lock);
    return 0;
}

/* Find the range of the list that contains [begin, end). */
static bool find_span(const struct span_list *list, uint64_t begin, uint64_t end,
                      struct span *found)
{
    /* ends with low - 1 at the last span that begins at or before `begin` */
    size_t low = 0, high = list->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (list->spans[middle].begin <= begin)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0 || list->spans[low - 1].end < end)
        return false;
    *found = list->spans[low - 1];
    return true;
}

/* Async-signal-safe. */
bool taskd_registered(int kind, uint64_t begin, uint64_t end, uint64_t *base, uint64_t *size)
{
    struct span found;
    __atomic_fetch_add(&registered.readers, 1, __ATOMIC_SEQ_CST);
    const struct span_list *list = __atomic_load_n(&registered.current[kind], __ATOMIC_SEQ_CST);
    bool inside = list != NULL && find_span(list, begin, end, &found);
    __atomic_fetch_sub(&registered.readers, 1, __ATOMIC_RELEASE);
    if (inside) {
        *base = found.begin;
        *size = found.end - found.begin;
    }
    return inside;
}

void taskd_registered_child(void)
{
    /* Their holders do not exist here. */
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    registered.lock = fresh;
    registered.readers = 0;
}
