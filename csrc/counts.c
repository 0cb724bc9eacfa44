/* What the ranks of a node compare before they change their state: how many collectives each has
 * begun in each of its groups. */
#include "internal.h"

#define STEPS 40 /* bits of a key that a step takes; those above it are an interruption's, or a
                  * generation's */
#define MARKED 2

/* `+ 1`: 0 is none. */
static uint64_t key_of(uint64_t step, uint32_t era)
{
    return ((step & ((1ull << STEPS) - 1)) | (uint64_t)(era & 0x7FFFFFu) << STEPS) + 1;
}

static int put(uint32_t which, uint64_t key, const struct taskd_count *counts, uint32_t n)
{
    struct taskd_slot *slot = taskd_my_slot();
    if (slot == NULL)
        return -ENOTCONN;
    if (n > TASKD_GROUPS)
        return -EINVAL;
    struct taskd_counts *into = &slot->counts[which];
    __atomic_store_n(&into->key, 0, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    for (uint32_t i = 0; i < n; i++) {
        __atomic_store_n(&into->of[i].group, counts[i].group, __ATOMIC_RELAXED);
        __atomic_store_n(&into->of[i].begun, counts[i].begun, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&into->n, n, __ATOMIC_RELAXED);
    __atomic_store_n(&into->key, key, __ATOMIC_RELEASE);
    return 0;
}

int taskd_counted(uint64_t step, uint32_t built_at, const struct taskd_count *counts, uint32_t n)
{
    return put(step % 2, key_of(step, built_at), counts, n);
}

int taskd_marked(uint64_t step, uint32_t generation, const struct taskd_count *counts, uint32_t n)
{
    return put(MARKED, key_of(step, generation), counts, n);
}

/* A consistent copy; false: the rank has not given its counts for that step, or none any longer. */
static bool copy(const struct taskd_counts *from, uint64_t key, struct taskd_counts *into)
{
    if (__atomic_load_n(&from->key, __ATOMIC_ACQUIRE) != key)
        return false;
    uint32_t n = __atomic_load_n(&from->n, __ATOMIC_RELAXED);
    into->n = n < TASKD_GROUPS ? n : TASKD_GROUPS;
    for (uint32_t i = 0; i < into->n; i++) {
        into->of[i].group = __atomic_load_n(&from->of[i].group, __ATOMIC_RELAXED);
        into->of[i].begun = __atomic_load_n(&from->of[i].begun, __ATOMIC_RELAXED);
    }
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(&from->key, __ATOMIC_RELAXED) == key;
}

/* Ranks mostly have the same groups in the same places: `place` is looked at first. */
static const struct taskd_count *find(const struct taskd_counts *counts, uint64_t group,
                                      uint32_t place)
{
    if (place < counts->n && counts->of[place].group == group)
        return &counts->of[place];
    for (uint32_t i = 0; i < counts->n; i++)
        if (counts->of[i].group == group)
            return &counts->of[i];
    return NULL;
}

int taskd_uneven(uint64_t step, uint32_t built_at, uint64_t *group)
{
    struct taskd_slot *slot = taskd_my_slot();
    if (slot == NULL)
        return -ENOTCONN;
    const struct taskd_page *page = taskd_self.page;
    uint64_t key = key_of(step, built_at);
    struct taskd_counts own, other;
    if (!copy(&slot->counts[step % 2], key, &own))
        return 0;
    for (uint32_t i = 0; i < page->nslots; i++) {
        if (i == taskd_self.index || !copy(&page->slots[i].counts[step % 2], key, &other))
            continue;
        for (uint32_t k = 0; k < own.n; k++) {
            const struct taskd_count *theirs = find(&other, own.of[k].group, k);
            if (theirs != NULL && theirs->begun != own.of[k].begun) {
                *group = own.of[k].group;
                return 1;
            }
        }
    }
    return 0;
}

int taskd_count_of(uint32_t index, uint64_t step, uint32_t built_at, uint64_t group,
                   uint64_t *begun)
{
    if (taskd_my_slot() == NULL)
        return -ENOTCONN;
    const struct taskd_page *page = taskd_self.page;
    struct taskd_counts counts;
    if (index >= page->nslots)
        return -EINVAL;
    if (!copy(&page->slots[index].counts[step % 2], key_of(step, built_at), &counts))
        return 0;
    const struct taskd_count *found = find(&counts, group, 0);
    if (found == NULL)
        return 0;
    *begun = found->begun;
    return 1;
}

int taskd_marks(const struct taskd_page *page, uint32_t index, uint64_t *step,
                uint32_t *generation, struct taskd_count *out)
{
    if (index >= page->nslots)
        return -EINVAL;
    const struct taskd_counts *from = &page->slots[index].counts[MARKED];
    uint64_t key = __atomic_load_n(&from->key, __ATOMIC_ACQUIRE);
    struct taskd_counts counts;
    if (key == 0 || !copy(from, key, &counts))
        return 0;
    *step = (key - 1) & ((1ull << STEPS) - 1);
    *generation = (uint32_t)((key - 1) >> STEPS);
    for (uint32_t i = 0; i < counts.n; i++)
        out[i] = counts.of[i];
    return (int)counts.n;
}
