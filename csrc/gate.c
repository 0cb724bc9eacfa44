/* A rank's position, and its waits: for the other ranks to start a step, for the copy of its
 * record, for an interruption. */
#include "internal.h"

#include <string.h>

/* The current attempt, to measure the usual time. One thread publishes progress. */
static struct {
    uint64_t began; /* when it entered FETCHING or COMPUTING; 0: none, or it does not count */
    bool measured;  /* one has ended since attach */
    uint64_t usual;
} attempt;

/* Which of the slot's counts a duration belongs to, see taskd_times. */
static uint32_t kind_of_time(uint64_t ns)
{
    uint32_t power = ns == 0 ? 0 : 63 - (uint32_t)__builtin_clzll(ns);
    if (power < 16)
        return 0;
    uint32_t kind = (power - 16) * 8 + (uint32_t)(ns >> (power - 3) & 7);
    return kind < TASKD_TIMES ? kind : TASKD_TIMES - 1;
}

static void attempt_goes_on(struct taskd_slot *slot, uint32_t phase, uint64_t now)
{
    if (phase == TASKD_UPDATING)
        return;
    if (phase == TASKD_FETCHING || phase == TASKD_COMPUTING) {
        if (attempt.began == 0)
            attempt.began = now;
        return;
    }
    if (phase == TASKD_COMMITTED && attempt.began != 0) {
        uint64_t took = now - attempt.began;
        if (attempt.measured) {
            uint32_t *count = &slot->times[kind_of_time(took)]; /* one writer */
            __atomic_store_n(count, *count + 1, __ATOMIC_RELAXED);
        }
        if (!attempt.measured)
            attempt.measured = true;
        else if (took >= attempt.usual)
            attempt.usual = took;
        else
            attempt.usual -= (attempt.usual - took) / 16;
    }
    attempt.began = 0;
}

static void publish(struct taskd_slot *slot, uint64_t step, uint32_t phase, uint64_t now)
{
    /* One writer. `| 1` also repairs a counter that a predecessor left odd when it died inside. */
    uint32_t seq = __atomic_load_n(&slot->seq, __ATOMIC_RELAXED) | 1u;
    __atomic_store_n(&slot->seq, seq, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    __atomic_store_n(&slot->phase, phase, __ATOMIC_RELAXED);
    if (step != __atomic_load_n(&slot->step, __ATOMIC_RELAXED))
        __atomic_store_n(&slot->came_ns, now, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->step, step, __ATOMIC_RELAXED);
    if (phase != TASKD_INTERRUPTED) /* no progress: when the rank stood still remains visible */
        __atomic_store_n(&slot->heartbeat_ns, now, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->usual_ns, attempt.usual, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->seq, seq + 1, __ATOMIC_RELEASE);
}

/* At the claim: times of a predecessor, or of this process in another slot, do not apply. */
void taskd_publish_first(struct taskd_slot *slot)
{
    memset(&attempt, 0, sizeof attempt);
    __atomic_store_n(&slot->until_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->waited_ns, 0, __ATOMIC_RELAXED);
    uint64_t now = taskd_now();
    __atomic_store_n(&slot->came_ns, now, __ATOMIC_RELAXED);
    publish(slot, 0, TASKD_SETUP, now);
}

int taskd_progress(uint64_t step, uint32_t phase)
{
    struct taskd_slot *slot = taskd_my_slot();
    if (slot == NULL)
        return -ENOTCONN;
    uint64_t now = taskd_now();
    attempt_goes_on(slot, phase, now);
    publish(slot, step, phase, now);
    return 0;
}

int taskd_waited(uint64_t ns)
{
    struct taskd_slot *slot = taskd_my_slot();
    if (slot == NULL)
        return -ENOTCONN;
    uint64_t before = __atomic_load_n(&slot->waited_ns, __ATOMIC_RELAXED); /* one writer */
    __atomic_store_n(&slot->waited_ns, before + ns, __ATOMIC_RELAXED);
    return 0;
}

int taskd_patience(uint64_t seconds)
{
    struct taskd_slot *slot = taskd_my_slot();
    if (slot == NULL)
        return -ENOTCONN;
    uint64_t now = taskd_now();
    uint64_t until = seconds == 0                                 ? 0
                     : seconds < (UINT64_MAX - now) / 1000000000u ? now + seconds * 1000000000u
                                                                  : UINT64_MAX;
    /* Outside the seqlock, whose writer may be another thread: each word is atomic by itself. */
    __atomic_store_n(&slot->until_ns, until, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->heartbeat_ns, now, __ATOMIC_RELAXED);
    return 0;
}

uint64_t taskd_pause_step(void)
{
    return taskd_my_slot() == NULL ? TASKD_NO_PAUSE
                                   : __atomic_load_n(&taskd_self.page->pause, __ATOMIC_ACQUIRE);
}

/* Steps count from 0, and 0 in the slot means none started: the slot holds a count of steps. */
static uint64_t steps_until(uint64_t step)
{
    return step == TASKD_ALL_DONE ? TASKD_ALL_DONE : step + 1;
}

int taskd_started(uint64_t step)
{
    struct taskd_slot *slot = taskd_my_slot();
    if (slot == NULL)
        return -ENOTCONN;
    struct taskd_page *page = taskd_self.page;
    /* Sequentially consistent here and in wait_at_gate: either this thread sees the waiter, or the
     * waiter sees the step. */
    __atomic_store_n(&slot->started, steps_until(step), __ATOMIC_SEQ_CST);
    taskd_open_gate(page);
    return 0;
}

static bool all_started(const struct taskd_page *page, const struct taskd_slot *slot,
                        uint64_t steps)
{
    (void)slot;
    for (uint32_t i = 0; i < page->nslots; i++)
        if (__atomic_load_n(&page->slots[i].started, __ATOMIC_SEQ_CST) < steps)
            return false;
    return true;
}

static bool is_copied(const struct taskd_page *page, const struct taskd_slot *slot, uint64_t number)
{
    return __atomic_load_n(&slot->copied, __ATOMIC_SEQ_CST) >= number ||
           __atomic_load_n(&page->copying, __ATOMIC_SEQ_CST) == 0;
}

/* Wait at the gate until `is_open`: 0; 1 on an interruption newer than `built_at`; -ETIMEDOUT. */
static int wait_at_gate(bool (*is_open)(const struct taskd_page *, const struct taskd_slot *,
                                        uint64_t),
                        uint64_t number, uint32_t built_at, int timeout_ms)
{
    struct taskd_slot *slot = taskd_my_slot();
    if (slot == NULL)
        return -ENOTCONN;
    struct taskd_page *page = taskd_self.page;
    if (__atomic_load_n(&slot->interruption, __ATOMIC_SEQ_CST) > built_at)
        return 1;
    if (is_open(page, slot, number))
        return 0;

    uint64_t deadline = taskd_deadline(timeout_ms);
    int rc;
    /* A waiter killed in here leaves the count too high forever, which costs the others one system
     * call per step. */
    __atomic_fetch_add(&page->gate_waiters, 1, __ATOMIC_SEQ_CST);
    for (;;) {
        uint32_t gate = __atomic_load_n(&page->gate, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&slot->interruption, __ATOMIC_SEQ_CST) > built_at) {
            rc = 1;
            break;
        }
        if (is_open(page, slot, number)) {
            rc = 0;
            break;
        }
        if (!taskd_wait(&page->gate, gate, deadline)) {
            rc = -ETIMEDOUT;
            break;
        }
    }
    __atomic_fetch_sub(&page->gate_waiters, 1, __ATOMIC_SEQ_CST);
    return rc;
}

int taskd_wait_started(uint64_t step, uint32_t built_at, int timeout_ms)
{
    return wait_at_gate(all_started, steps_until(step), built_at, timeout_ms);
}

/* The word `together`: the step, the interruption it counts from, whether it was given up, and how
 * many ranks have arrived. One word, so that "all arrived" and "given up" exclude each other. */
#define CAME 0xFFFFu
#define GIVEN_UP 0x10000u

static uint64_t together_key(uint64_t step, uint32_t built_at)
{
    return (step & UINT32_MAX) << 32 | (uint64_t)(built_at & 0x7FFFu) << 17;
}

/* How many ranks take steps together: those that are away do not (taskd_page_away). */
static uint32_t present(const struct taskd_page *page)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < page->nslots; i++)
        found += __atomic_load_n(&page->slots[i].started, __ATOMIC_SEQ_CST) != TASKD_ALL_DONE;
    return found;
}

/* The state of `key` in the word: 0 all have arrived, 1 given up, -1 neither. */
static int together_is(const struct taskd_page *page, uint64_t word, uint64_t key)
{
    if (word == 0)
        return -1; /* no rank has arrived at any step of this page */
    uint32_t newer = ((uint32_t)(word >> 17) - (uint32_t)(key >> 17)) & 0x7FFFu;
    if (newer != 0)
        return newer < 0x4000u ? 1 : -1; /* another interruption has passed, or this one has */
    int32_t later = (int32_t)((uint32_t)(word >> 32) - (uint32_t)(key >> 32));
    if (later != 0)
        return later > 0 ? 0 : -1; /* the others are at a later step, so all had been here */
    if (word & GIVEN_UP)
        return 1;
    return (word & CAME) >= present(page) ? 0 : -1;
}

/* Arrive at the step, or with `late` give it up; returns as together_is. */
static int come_together(struct taskd_page *page, uint64_t key, bool late)
{
    uint64_t word = __atomic_load_n(&page->together, __ATOMIC_SEQ_CST), next;
    do {
        if (together_is(page, word, key) >= 0)
            break;
        uint64_t now = (word ^ key) >> 17 == 0 ? word : key;
        next = late ? now | GIVEN_UP : now + 1;
    } while (!__atomic_compare_exchange_n(&page->together, &word, next, false, __ATOMIC_SEQ_CST,
                                          __ATOMIC_SEQ_CST));
    taskd_open_gate(page);
    return together_is(page, __atomic_load_n(&page->together, __ATOMIC_SEQ_CST), key);
}

static bool all_came(const struct taskd_page *page, const struct taskd_slot *slot, uint64_t key)
{
    (void)slot;
    return together_is(page, __atomic_load_n(&page->together, __ATOMIC_SEQ_CST), key) >= 0;
}

int taskd_together(uint64_t step, uint32_t built_at, int timeout_ms)
{
    struct taskd_slot *slot = taskd_my_slot();
    if (slot == NULL)
        return -ENOTCONN;
    struct taskd_page *page = taskd_self.page;
    uint64_t key = together_key(step, built_at);
    if (__atomic_load_n(&slot->interruption, __ATOMIC_SEQ_CST) > built_at)
        return come_together(page, key, true);
    int is = come_together(page, key, false);
    if (is >= 0)
        return is;
    int rc = wait_at_gate(all_came, key, built_at, timeout_ms);
    if (rc < 0)
        return rc;
    return rc == 1 ? come_together(page, key, true)
                   : together_is(page, __atomic_load_n(&page->together, __ATOMIC_SEQ_CST), key);
}

int taskd_wait_copied(uint64_t number, uint32_t built_at, int timeout_ms)
{
    return wait_at_gate(is_copied, number, built_at, timeout_ms);
}

int taskd_copying(void)
{
    if (taskd_my_slot() == NULL)
        return 0;
    /* Without it a load could overtake an earlier store, and neither side would see the other. */
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return __atomic_load_n(&taskd_self.page->copying, __ATOMIC_SEQ_CST) != 0;
}

uint32_t taskd_interruption(void)
{
    struct taskd_slot *slot = taskd_my_slot();
    return slot == NULL ? 0 : __atomic_load_n(&slot->interruption, __ATOMIC_ACQUIRE);
}

int taskd_wait_interruption(uint32_t built_at, int timeout_ms)
{
    struct taskd_slot *slot = taskd_my_slot();
    if (slot == NULL)
        return -ENOTCONN;
    uint64_t deadline = taskd_deadline(timeout_ms);
    for (;;) {
        uint32_t interruption = __atomic_load_n(&slot->interruption, __ATOMIC_ACQUIRE);
        if (interruption > built_at)
            return 1;
        if (!taskd_wait(&slot->interruption, interruption, deadline))
            return 0;
    }
}
