/* The agent's side of the state page: create it, prepare slots, interrupt ranks, read slots. */
#include "internal.h"

#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define MAX_SLOTS 4096u
/* A waiter or resetter holds `alive` for less than a microsecond, but may be descheduled then. */
#define ALIVE_GLANCE_MS 100

size_t taskd_page_bytes(uint32_t nslots)
{
    return sizeof(struct taskd_page) + (size_t)nslots * sizeof(struct taskd_slot);
}

uint32_t taskd_abi(void)
{
    return TASKD_ABI;
}

#ifndef TASKD_VERSION
#error "TASKD_VERSION is the package's version, a string: setup.py passes it"
#endif

const char *taskd_version(void)
{
    return TASKD_VERSION;
}

static int alive_init(pthread_mutex_t *alive)
{
    pthread_mutexattr_t attr;
    int rc = pthread_mutexattr_init(&attr);
    if (rc != 0)
        return -rc;
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    /* Error checking, so that a second claim by the same thread fails instead of hanging. */
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK);
    rc = pthread_mutex_init(alive, &attr);
    pthread_mutexattr_destroy(&attr);
    return -rc;
}

int taskd_alive_lock(pthread_mutex_t *alive, int timeout_ms)
{
    int rc;
    if (timeout_ms < 0) {
        rc = pthread_mutex_lock(alive);
    } else {
        struct timespec until;
#if __GLIBC_PREREQ(2, 30)
        const clockid_t clock = CLOCK_MONOTONIC;
#else
        const clockid_t clock = CLOCK_REALTIME; /* the only choice; a jump shifts the time-out */
#endif
        clock_gettime(clock, &until);
        until.tv_sec += timeout_ms / 1000;
        until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_sec++;
            until.tv_nsec -= 1000000000;
        }
#if __GLIBC_PREREQ(2, 30)
        rc = pthread_mutex_clocklock(alive, clock, &until);
#else
        rc = pthread_mutex_timedlock(alive, &until);
#endif
    }
    if (rc != EOWNERDEAD)
        return -rc;
    /* At once: the mutex protects no data, and one left inconsistent is unusable forever. */
    pthread_mutex_consistent(alive);
    return EOWNERDEAD;
}

static int write_zeros(int fd, size_t bytes)
{
    static const char zeros[4096];
    while (bytes > 0) {
        ssize_t n = write(fd, zeros, bytes < sizeof zeros ? bytes : sizeof zeros);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n == 0 ? -ENOSPC : -errno;
        bytes -= (size_t)n;
    }
    return 0;
}

static int page_fill(int fd, uint32_t nslots, struct taskd_page **out)
{
    /* Written, not truncated: every block exists from now on, so a full file system fails here and
     * not as a later SIGBUS. */
    int rc = write_zeros(fd, taskd_page_bytes(nslots));
    if (rc < 0)
        return rc;
    struct taskd_page *page =
        mmap(NULL, taskd_page_bytes(nslots), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        return -errno;
    page->abi = TASKD_ABI;
    page->nslots = nslots;
    page->slot_bytes = sizeof(struct taskd_slot);
    page->pause = TASKD_NO_PAUSE;
    for (uint32_t i = 0; i < nslots; i++) {
        page->slots[i].rank = TASKD_NO_RANK;
        rc = alive_init(&page->slots[i].alive);
        if (rc < 0) {
            munmap(page, taskd_page_bytes(nslots));
            return rc;
        }
    }
    /* Last: a process that opens the file earlier gets -EPROTO. */
    __atomic_store_n(&page->magic, TASKD_MAGIC, __ATOMIC_RELEASE);
    *out = page;
    return 0;
}

int taskd_page_create(const char *path, uint32_t nslots, struct taskd_page **page)
{
    if (path == NULL || page == NULL || nslots < 1 || nslots > MAX_SLOTS)
        return -EINVAL;
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int rc = page_fill(fd, nslots, page);
    close(fd);
    if (rc < 0)
        unlink(path);
    return rc;
}

int taskd_page_unmap(struct taskd_page *page)
{
    if (page == NULL)
        return -EINVAL;
    return munmap(page, taskd_page_bytes(page->nslots)) < 0 ? -errno : 0;
}

static bool has_slot(const struct taskd_page *page, uint32_t slot)
{
    return page != NULL && slot < page->nslots;
}

int taskd_slot_reset(struct taskd_page *page, uint32_t index)
{
    if (!has_slot(page, index))
        return -EINVAL;
    struct taskd_slot *slot = &page->slots[index];
    int rc = taskd_alive_lock(&slot->alive, ALIVE_GLANCE_MS);
    if (rc == -ETIMEDOUT || rc == -EDEADLK)
        return -EBUSY;
    bool locked = rc >= 0;
    /* its holder died between locking it and making it consistent: nothing can hold it now */
    if (rc == -ENOTRECOVERABLE)
        rc = alive_init(&slot->alive);
    if (rc < 0)
        return rc;
    slot->rank = TASKD_NO_RANK;
    slot->pid = 0;
    slot->incarnation = 0;
    slot->asked = 0;
    slot->handles = 0;
    __atomic_store_n(&slot->attached, 0, __ATOMIC_RELEASE);
    slot->phase = TASKD_SETUP;
    slot->step = 0;
    slot->heartbeat_ns = 0;
    slot->usual_ns = 0;
    slot->until_ns = 0;
    slot->came_ns = 0;
    slot->waited_ns = 0;
    __atomic_store_n(&slot->started, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&slot->copied, 0, __ATOMIC_RELEASE);
    memset(slot->records, 0, sizeof slot->records);
    slot->damaged = 0;
    memset(slot->damages, 0, sizeof slot->damages);
    memset(slot->times, 0, sizeof slot->times);
    memset(slot->counts, 0, sizeof slot->counts);
    __atomic_store_n(&slot->seq, 0, __ATOMIC_RELEASE);
    if (locked)
        pthread_mutex_unlock(&slot->alive);
    return 0;
}

void taskd_open_gate(struct taskd_page *page)
{
    if (__atomic_load_n(&page->gate_waiters, __ATOMIC_SEQ_CST) != 0) {
        __atomic_fetch_add(&page->gate, 1, __ATOMIC_SEQ_CST);
        taskd_wake(&page->gate);
    }
}

static void pause_one(struct taskd_slot *slot, uint32_t number)
{
    uint32_t now = __atomic_load_n(&slot->interruption, __ATOMIC_RELAXED);
    while (now < number)
        if (__atomic_compare_exchange_n(&slot->interruption, &now, number, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED))
            break;
    /* Even if the number is not new: a rank may have missed the first wake. */
    taskd_wake(&slot->interruption);
}

int taskd_page_interrupt(struct taskd_page *page, uint32_t index, uint32_t number)
{
    if (page == NULL || (index != UINT32_MAX && !has_slot(page, index)))
        return -EINVAL;
    if (index != UINT32_MAX)
        pause_one(&page->slots[index], number);
    else
        for (uint32_t i = 0; i < page->nslots; i++)
            pause_one(&page->slots[i], number);
    taskd_open_gate(page);
    return 0;
}

int taskd_page_copying(struct taskd_page *page, int on)
{
    if (page == NULL)
        return -EINVAL;
    for (uint32_t i = 0; on && i < page->nslots; i++)
        __atomic_store_n(&page->slots[i].copied, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&page->copying, on ? 1 : 0, __ATOMIC_SEQ_CST);
    taskd_open_gate(page);
    return 0;
}

int taskd_page_ending(struct taskd_page *page)
{
    if (page == NULL)
        return -EINVAL;
    __atomic_store_n(&page->ending, 1, __ATOMIC_RELEASE);
    return 0;
}

int taskd_page_away(struct taskd_page *page, uint32_t index)
{
    if (!has_slot(page, index))
        return -EINVAL;
    __atomic_store_n(&page->slots[index].started, TASKD_ALL_DONE, __ATOMIC_SEQ_CST);
    taskd_open_gate(page);
    return 0;
}

int taskd_page_copied(struct taskd_page *page, uint32_t index, uint64_t number)
{
    if (!has_slot(page, index))
        return -EINVAL;
    __atomic_store_n(&page->slots[index].copied, number, __ATOMIC_SEQ_CST);
    taskd_open_gate(page);
    return 0;
}

int taskd_page_pause(struct taskd_page *page, uint64_t step)
{
    if (page == NULL)
        return -EINVAL;
    __atomic_store_n(&page->pause, step, __ATOMIC_RELEASE);
    return 0;
}

uint32_t taskd_page_bell(const struct taskd_page *page)
{
    return page == NULL ? 0 : __atomic_load_n(&page->bell, __ATOMIC_ACQUIRE);
}

int taskd_page_wait_bell(struct taskd_page *page, uint32_t seen, int timeout_ms)
{
    if (page == NULL)
        return -EINVAL;
    uint64_t deadline = taskd_deadline(timeout_ms);
    while (taskd_page_bell(page) == seen)
        if (!taskd_wait(&page->bell, seen, deadline))
            return 0;
    return 1;
}

int taskd_read(const struct taskd_page *page, uint32_t index, struct taskd_view *view)
{
    if (!has_slot(page, index) || view == NULL)
        return -EINVAL;
    const struct taskd_slot *slot = &page->slots[index];
    view->attached = __atomic_load_n(&slot->attached, __ATOMIC_ACQUIRE);
    view->rank = __atomic_load_n(&slot->rank, __ATOMIC_RELAXED);
    view->pid = __atomic_load_n(&slot->pid, __ATOMIC_RELAXED);
    view->incarnation = __atomic_load_n(&slot->incarnation, __ATOMIC_RELAXED);
    view->interruption = __atomic_load_n(&slot->interruption, __ATOMIC_RELAXED);
    view->started = __atomic_load_n(&slot->started, __ATOMIC_ACQUIRE);
    view->until_ns = __atomic_load_n(&slot->until_ns, __ATOMIC_RELAXED);
    view->waited_ns = __atomic_load_n(&slot->waited_ns, __ATOMIC_RELAXED);
    view->damaged = __atomic_load_n(&slot->damaged, __ATOMIC_ACQUIRE);
    view->asked = __atomic_load_n(&slot->asked, __ATOMIC_ACQUIRE);
    view->handles = __atomic_load_n(&slot->handles, __ATOMIC_RELAXED);
    /* An update takes ~30 ns. A writer still inside after this many tries, most of them after a
     * yield, is dead or stopped. */
    for (int tries = 0; tries < 1000; tries++) {
        uint32_t before = __atomic_load_n(&slot->seq, __ATOMIC_ACQUIRE);
        view->phase = __atomic_load_n(&slot->phase, __ATOMIC_RELAXED);
        view->step = __atomic_load_n(&slot->step, __ATOMIC_RELAXED);
        view->heartbeat_ns = __atomic_load_n(&slot->heartbeat_ns, __ATOMIC_RELAXED);
        view->usual_ns = __atomic_load_n(&slot->usual_ns, __ATOMIC_RELAXED);
        view->came_ns = __atomic_load_n(&slot->came_ns, __ATOMIC_RELAXED);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (before % 2 == 0 && __atomic_load_n(&slot->seq, __ATOMIC_RELAXED) == before)
            return 0;
        if (tries > 100)
            sched_yield();
    }
    return -EAGAIN;
}

int taskd_times(const struct taskd_page *page, uint32_t index, uint32_t *out)
{
    if (!has_slot(page, index) || out == NULL)
        return -EINVAL;
    for (int i = 0; i < TASKD_TIMES; i++)
        out[i] = __atomic_load_n(&page->slots[index].times[i], __ATOMIC_RELAXED);
    return 0;
}

int taskd_records(const struct taskd_page *page, uint32_t index, struct taskd_record *out)
{
    if (!has_slot(page, index) || out == NULL)
        return -EINVAL;
    const struct taskd_record *all = page->slots[index].records;
    int n = 0;
    for (int i = 0; i < TASKD_RECORDS; i++) {
        uint32_t kind = __atomic_load_n(&all[i].kind, __ATOMIC_ACQUIRE);
        if (kind == TASKD_RECORD_NONE)
            continue;
        struct taskd_record copy;
        memcpy(&copy, &all[i], sizeof copy);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        /* Overwritten meanwhile: the next call will see its successor. */
        if (__atomic_load_n(&all[i].kind, __ATOMIC_RELAXED) != kind || all[i].order != copy.order)
            continue;
        copy.kind = kind;
        int at = n++;
        for (; at > 0 && out[at - 1].order > copy.order; at--)
            out[at] = out[at - 1];
        out[at] = copy;
    }
    return n;
}

int taskd_damages(const struct taskd_page *page, uint32_t index, struct taskd_damage *out)
{
    if (!has_slot(page, index) || out == NULL)
        return -EINVAL;
    const struct taskd_slot *slot = &page->slots[index];
    return taskd_damage_copy(slot->damages, TASKD_DAMAGES,
                             __atomic_load_n(&slot->damaged, __ATOMIC_ACQUIRE), out, TASKD_DAMAGES);
}

int taskd_wait_death(struct taskd_page *page, uint32_t index, int timeout_ms)
{
    if (!has_slot(page, index))
        return -EINVAL;
    struct taskd_slot *slot = &page->slots[index];
    int rc = taskd_alive_lock(&slot->alive, timeout_ms);
    if (rc == -ENOTRECOVERABLE)
        return 0;
    if (rc < 0)
        return rc;
    /* `attached` survives a death but not a detach, so it distinguishes a dead holder from none.
     * Set for the next caller in case the rank died between taking the lock and setting it. */
    bool died = rc == EOWNERDEAD || __atomic_load_n(&slot->attached, __ATOMIC_ACQUIRE) != 0;
    if (died)
        __atomic_store_n(&slot->attached, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&slot->alive);
    return died ? 0 : -ENOLCK;
}
