/* Contains the loss of a page that held only numbers, so that the process survives: the page is
 * replaced by a clean one and the loss recorded before any thread can read the first zero. The
 * worker decides what follows.
 *
 * The code here that runs inside the SIGBUS handler takes one lock of its own and makes system
 * calls. The lock covers nothing else; a thread that faults again while holding it has hit
 * bookkeeping, and dies as it would have. */
#include "internal.h"

#include <string.h>
#include <sys/mman.h>

/* SIGBUS codes for lost memory; older C libraries lack the names. userfaultfd's poison raises
 * BUS_ADRERR if the kernel is built without memory failure handling. */
#define CODE_ADDRESS 2
#define CODE_ACTION_REQUIRED 4
#define CODE_ACTION_OPTIONAL 5

#define LARGEST_PAGE_SHIFT 30 /* of the huge pages in use */

/* A page that faults this often in a row, in one thread and within this time, will not recover. */
#define REPEATS 4
#define REPEATS_NS 1000000000u
#define REPEATERS 64 /* threads watched at a time */

static uint64_t damaged, accepted;
static struct taskd_damage listed[TASKD_DAMAGES_LISTED];

static int32_t container; /* tid of the thread that is containing a damage, 0 for none */

/* With the lock held. */
static struct {
    int32_t tid;
    uint32_t times;
    uint64_t page, since;
} repeaters[REPEATERS];

static uint64_t page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* ---- containment ----------------------------------------------------------------------------- */

/* Find the known memory that contains [damage->addr, + damage->bytes), and fill in the other
 * fields. false: there is none. */
static bool locate(struct taskd_damage *damage, bool *shared)
{
    uint64_t begin = damage->addr, end = begin + damage->bytes;
    if (end < begin)
        return false;
    for (int kind = TASKD_MEMORY_TENSORS; kind <= TASKD_MEMORY_SHARED; kind++) {
        if (taskd_registered(kind, begin, end, &damage->base, &damage->size)) {
            damage->kind = TASKD_DAMAGE_REGISTERED;
            damage->born = 0;
            *shared = kind == TASKD_MEMORY_SHARED;
            return true;
        }
    }
    damage->kind = TASKD_DAMAGE_ALLOCATED;
    *shared = false;
    return taskd_allocation_of(begin, &damage->base, &damage->size, &damage->born) == 1 &&
           damage->bytes <= damage->size && begin - damage->base <= damage->size - damage->bytes;
}

/* Whether 8 bytes at the address are readable. Asks the kernel, whose own accesses raise no signal:
 * it reads a signal set from the address before it rejects the invalid request. */
static bool readable(uint64_t address)
{
    return syscall(SYS_rt_sigprocmask, ~0, (void *)(uintptr_t)address, NULL, sizeof(uint64_t)) ==
               0 ||
           errno != EFAULT;
}

static bool replace_private(void *page, size_t bytes)
{
    if (madvise(page, bytes, MADV_DONTNEED) == 0 && readable((uint64_t)(uintptr_t)page))
        return true;
    /* Locked memory refuses MADV_DONTNEED. */
    return mmap(page, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                0) == page;
}

static bool replace_shared(void *page, size_t bytes)
{
    /* First drop the lost page's mark from this process's mapping. That may suffice: if another
     * process has already made the hole, what was written into it since must stay. */
    madvise(page, bytes, MADV_DONTNEED);
    if (readable((uint64_t)(uintptr_t)page))
        return true;
    return madvise(page, bytes, MADV_REMOVE) == 0 && readable((uint64_t)(uintptr_t)page);
}

static bool lock_containment(int32_t tid)
{
    for (;;) {
        int32_t holder = 0;
        if (__atomic_compare_exchange_n(&container, &holder, tid, false, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED))
            return true;
        if (holder == tid)
            return false;
        syscall(SYS_sched_yield);
    }
}

/* With the lock held. Not thread-local: the first access to such a variable may allocate. */
static bool hopeless(int32_t tid, uint64_t page, uint64_t now)
{
    unsigned at = 0;
    for (unsigned i = 0; i < REPEATERS; i++) {
        if (repeaters[i].tid == tid) {
            at = i;
            break;
        }
        if (repeaters[i].since < repeaters[at].since)
            at = i;
    }
    if (repeaters[at].tid == tid && repeaters[at].page == page &&
        now - repeaters[at].since < REPEATS_NS)
        return ++repeaters[at].times >= REPEATS;
    repeaters[at].tid = tid;
    repeaters[at].page = page;
    repeaters[at].since = now;
    repeaters[at].times = 1;
    return false;
}

static void write_into(struct taskd_damage *to, const struct taskd_damage *damage)
{
    __atomic_store_n(&to->number, 0, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    memcpy(to, damage, offsetof(struct taskd_damage, number));
    __atomic_store_n(&to->number, damage->number, __ATOMIC_RELEASE);
}

/* With the lock held. */
static bool replace_and_note(struct taskd_slot *slot, struct taskd_damage *damage, bool shared)
{
    void *page = (void *)(uintptr_t)damage->addr;
    /* Count before the page is clean: from then on other threads read zeros without a signal. */
    damage->number = damaged + 1;
    write_into(&listed[(damage->number - 1) % TASKD_DAMAGES_LISTED], damage);
    __atomic_store_n(&damaged, damage->number, __ATOMIC_SEQ_CST);
    if (!(shared ? replace_shared(page, damage->bytes) : replace_private(page, damage->bytes)))
        return false;
    write_into(&slot->damages[(damage->number - 1) % TASKD_DAMAGES], damage);
    __atomic_store_n(&slot->damaged, damage->number, __ATOMIC_RELEASE);
    __atomic_fetch_add(&taskd_self.page->bell, 1, __ATOMIC_RELEASE);
    taskd_wake(&taskd_self.page->bell);
    return true;
}

/* true: the faulting instruction can run again. Changes errno. */
bool taskd_damage_contain(const siginfo_t *info, uint64_t ip)
{
    int code = info->si_code;
    if (code != CODE_ADDRESS && code != CODE_ACTION_REQUIRED && code != CODE_ACTION_OPTIONAL)
        return false;
    struct taskd_slot *slot = taskd_own_slot();
    if (slot == NULL)
        return false;
    struct taskd_damage damage = {.bytes = page_bytes()};
    int shift = code == CODE_ADDRESS ? 0 : info->si_addr_lsb;
    if (shift > 0 && shift <= LARGEST_PAGE_SHIFT && (uint64_t)1 << shift > damage.bytes)
        damage.bytes = (uint64_t)1 << shift;
    damage.addr = (uint64_t)(uintptr_t)info->si_addr & ~(damage.bytes - 1);
    /* A page that is being executed does not hold numbers. */
    if (ip - damage.addr < damage.bytes)
        return false;
    damage.tid = taskd_tid();
    if (!lock_containment(damage.tid))
        return false;
    damage.mono_ns = taskd_now();
    bool shared, contained = false;
    if (locate(&damage, &shared) && !hopeless(damage.tid, damage.addr, damage.mono_ns))
        /* Already readable: several threads faulted and another was first. What was written since
         * must stay. */
        contained = readable(damage.addr) || replace_and_note(slot, &damage, shared);
    __atomic_store_n(&container, 0, __ATOMIC_RELEASE);
    return contained;
}

/* false: something else in the buffer is unreadable, and the call would fail again. */
static bool touch(const struct iovec *part)
{
    uint64_t bytes = page_bytes();
    uint64_t begin = (uint64_t)(uintptr_t)part->iov_base;
    /* the kernel moves at most INT_MAX bytes */
    uint64_t end = begin + (part->iov_len < INT_MAX ? part->iov_len : INT_MAX);
    for (uint64_t page = begin & ~(bytes - 1); page < end; page += bytes) {
        if (readable(page))
            continue;
        /* Only what can be contained: an invalid pointer must stay an error, not become a death. */
        struct taskd_damage damage = {.addr = page, .bytes = bytes};
        bool shared;
        if (!locate(&damage, &shared))
            return false;
        (void)*(const volatile char *)(uintptr_t)page;
    }
    return true;
}

/* After a system call failed with EFAULT: touch the lost pages of its buffers that can be
 * contained, so that they are. The kernel raises no signal for a page that only it touches. true:
 * retry the call. */
bool taskd_damage_touch(const struct iovec *parts, int count)
{
    if (taskd_own_slot() == NULL)
        return false;
    int saved_errno = errno;
    uint64_t before = taskd_damaged();
    for (int i = 0; i < count; i++)
        if (!readable((uint64_t)(uintptr_t)&parts[i].iov_base) ||
            !readable((uint64_t)(uintptr_t)&parts[i].iov_len) || !touch(&parts[i]))
            break;
    errno = saved_errno;
    return taskd_damaged() != before;
}

/* ---- reports --------------------------------------------------------------------------------- */

int taskd_damage_copy(const struct taskd_damage *ring, unsigned capacity, uint64_t newest,
                      struct taskd_damage *out, unsigned max)
{
    unsigned wanted = max < capacity ? max : capacity;
    int n = 0;
    for (uint64_t number = newest > wanted ? newest - wanted + 1 : 1;
         wanted > 0 && number <= newest; number++) {
        const struct taskd_damage *from = &ring[(number - 1) % capacity];
        if (__atomic_load_n(&from->number, __ATOMIC_ACQUIRE) != number)
            continue;
        memcpy(&out[n], from, sizeof *from);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        /* Overwritten meanwhile: the next call will see its successor. */
        if (__atomic_load_n(&from->number, __ATOMIC_RELAXED) == number)
            n++;
    }
    return n;
}

uint64_t taskd_damaged(void)
{
    return __atomic_load_n(&damaged, __ATOMIC_ACQUIRE);
}

int taskd_damage_list(struct taskd_damage *out, int max)
{
    if (out == NULL || max < 0)
        return -EINVAL;
    return taskd_damage_copy(listed, TASKD_DAMAGES_LISTED, taskd_damaged(), out, (unsigned)max);
}

void taskd_damage_accept(uint64_t count)
{
    uint64_t all = taskd_damaged(), now = __atomic_load_n(&accepted, __ATOMIC_RELAXED);
    if (count > all)
        count = all; /* not damages that are still to come */
    while (now < count)
        if (__atomic_compare_exchange_n(&accepted, &now, count, false, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED))
            break;
}

int taskd_spoiled(void)
{
    bool lost = taskd_damaged() > __atomic_load_n(&accepted, __ATOMIC_ACQUIRE);
    return (taskd_torn() != 0 ? TASKD_SPOILED_TORN : 0) | (lost ? TASKD_SPOILED_DAMAGED : 0);
}

static void forget(void)
{
    __atomic_store_n(&damaged, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&accepted, 0, __ATOMIC_RELEASE);
    memset(listed, 0, sizeof listed);
}

void taskd_damage_begin(struct taskd_slot *slot)
{
    forget();
    memset(slot->damages, 0, sizeof slot->damages);
    __atomic_store_n(&slot->damaged, 0, __ATOMIC_RELEASE);
}

void taskd_damage_child(void)
{
    taskd_registered_child();
    container = 0; /* its holder does not exist here */
    forget();
}
