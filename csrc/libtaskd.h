/* libtaskd: what a training process and its agent share without a system call.
 *
 * One *state page* per node, a file in /dev/shm made by the agent, holds one slot per local rank. A
 * rank publishes its position; the agent interrupts it; a rank that dies leaves a record of the
 * cause, and one that survives a loss of memory reports that. Nothing here allocates after attach,
 * except the thread started by the first taskd_sockets_begin and the lists of
 * taskd_memory_register. What runs in a signal handler is async-signal-safe.
 *
 * Every function returns 0 or a positive value on success and -errno on failure, unless its comment
 * says otherwise. "Attached" means: this process has claimed a slot. Calls that need a slot return
 * -ENOTCONN without one. */
#ifndef LIBTASKD_H
#define LIBTASKD_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define TASKD_ABI 7u
#define TASKD_MAGIC 0x444b5354u /* "TSKD" */
#define TASKD_RECORDS 4
#define TASKD_DAMAGES 4         /* in a slot; the process keeps more: taskd_damage_list */
#define TASKD_DAMAGES_LISTED 64 /* by taskd_damage_list */
#define TASKD_TIMES 192 /* kinds of durations, see taskd_times */
#define TASKD_GROUPS 32 /* of a rank, see taskd_counted */
#define TASKD_ALL_DONE UINT64_MAX /* to taskd_started: this rank will not start another step */
#define TASKD_NO_RANK UINT32_MAX  /* `rank` of a process without RANK */
#define TASKD_NO_PAUSE UINT64_MAX  /* to taskd_page_pause, from taskd_pause_step: no pause */
#define TASKD_SCRATCH UINT64_MAX  /* `born` of an allocation that every repair makes again */

/* A rank's phase; the numbers are part of the ABI. */
enum taskd_phase {
    TASKD_SETUP = 0,     /* before its first attempt */
    TASKD_COMPUTING = 1, /* inside an attempt, training state still untouched */
    TASKD_UPDATING = 2,  /* inside or after the optimizer's update of this attempt */
    TASKD_COMMITTED = 3, /* the attempt ended; between steps */
    TASKD_INTERRUPTED = 4,    /* has left its collectives, waits for orders */
    TASKD_DONE = 5,      /* finished its last step */
    TASKD_PAUSED = 6,      /* stopped at a step boundary on request, see taskd_page_pause */
    TASKD_FETCHING = 7,  /* waits for its data loader, before COMPUTING of the same step */
    TASKD_LEFT = 8,      /* the script has left its loop before its end, as by break */
    TASKD_QUIT = 9,      /* and its interpreter ends */
};

enum taskd_record_kind {
    TASKD_RECORD_NONE = 0,
    TASKD_RECORD_SIGNAL = 1, /* a fatal signal was delivered: sig, code, addr, ip */
    TASKD_RECORD_EXIT = 2,   /* _exit or exit_group through libc: code is the status */
    TASKD_RECORD_ABORT = 3,  /* abort() was called */
};

/* Why a process ended, written as it ended. 64 bytes. */
struct taskd_record {
    uint32_t kind; /* enum taskd_record_kind; written last */
    int32_t sig;
    int32_t code; /* si_code, or the exit status */
    int32_t pid;
    int32_t tid;
    uint32_t phase; /* the rank's phase and step at that moment */
    uint64_t step;
    uint64_t addr; /* si_addr: the true fault address, even with faulthandler enabled */
    uint64_t ip;   /* instruction pointer, 0 where unknown */
    uint64_t mono_ns; /* CLOCK_MONOTONIC */
    uint64_t order; /* 1, 2, ... in order of writing; the newest TASKD_RECORDS are kept */
};

/* The kind of memory in which a page lost its content. */
enum taskd_damage_kind {
    TASKD_DAMAGE_REGISTERED = 1, /* in memory named to taskd_memory_register */
    TASKD_DAMAGE_ALLOCATED = 2,  /* in an allocation that libtaskd tracks */
};

/* A page that lost its content and was replaced by a clean one; the program reads zeros. 64
 * bytes. */
struct taskd_damage {
    uint64_t addr;    /* first byte of the page */
    uint64_t bytes;   /* of the page */
    uint64_t base;    /* the allocation, or the registered range, that the page lies in */
    uint64_t size;    /* its bytes */
    uint64_t born;    /* the allocation's stamp, see taskd_attempt; 0 for a registered range */
    uint64_t mono_ns; /* CLOCK_MONOTONIC */
    uint32_t kind;    /* enum taskd_damage_kind */
    int32_t tid;      /* of the thread that touched it */
    uint64_t number;  /* 1, 2, ... since attach; written last */
};

/* How many collectives a rank has begun in one of its groups. */
struct taskd_count {
    uint64_t group;
    uint64_t begun;
};

struct taskd_counts {
    uint64_t key; /* of step and era, 0: none; written last */
    uint32_t n;
    struct taskd_count of[TASKD_GROUPS];
};

/* One local rank. 3200 bytes; the lines that different processes write are 64 bytes apart. */
struct taskd_slot {
    /* line 0: identity, by the rank at attach */
    _Alignas(64) uint32_t rank; /* global rank, from RANK */
    int32_t pid;
    uint32_t incarnation; /* from TASKD_INCARNATION: 0, +1 for each replacement */
    uint32_t attached;
    /* see taskd_leave_on: the last signal that came, 0: none; whether the program handles it */
    int32_t asked;
    uint32_t handles;
    /* line 1: the rank's position, by the rank (seqlock: odd `seq` while being written) */
    _Alignas(64) uint32_t seq;
    uint32_t phase;
    uint64_t step;
    uint64_t heartbeat_ns; /* CLOCK_MONOTONIC of the last taskd_progress but to INTERRUPTED */
    uint64_t started;      /* last step whose entry state is recorded, + 1; 0: none */
    uint64_t usual_ns;     /* usual duration of an attempt, see taskd_progress; 0: unknown */
    uint64_t until_ns;     /* CLOCK_MONOTONIC, end of taskd_patience: not hung before; 0: none */
    uint64_t came_ns;      /* CLOCK_MONOTONIC: when the rank came to `step` */
    uint64_t waited_ns;    /* for other ranks, since attach, see taskd_waited */
    /* line 2: orders, by the agent */
    _Alignas(64) uint32_t interruption; /* futex word: the newest interruption; never decreases */
    uint64_t copied; /* newest record of which another node has a copy, see taskd_wait_copied */
    /* line 3: held by the rank's main thread until it ends; the kernel then wakes the waiter */
    _Alignas(64) pthread_mutex_t alive; /* robust, process-shared */
    struct taskd_record records[TASKD_RECORDS];
    /* lines 8 to 12: memory that lost its content, by the thread that touched it */
    _Alignas(64) uint64_t damaged; /* count since attach */
    _Alignas(64) struct taskd_damage damages[TASKD_DAMAGES]; /* the newest */
    /* lines 13 to 24: how many attempts took how long, by the rank */
    _Alignas(64) uint32_t times[TASKD_TIMES];
    /* lines 25 to 49: of even and of odd steps, and of a step for other nodes, by the rank: see
     * taskd_counted, taskd_marked */
    _Alignas(64) struct taskd_counts counts[3];
};

struct taskd_page {
    _Alignas(64) uint32_t magic;
    uint32_t abi;
    uint32_t nslots;
    uint32_t slot_bytes;
    uint64_t pause;   /* step before which ranks stop, or TASKD_NO_PAUSE; by the agent */
    uint32_t copying; /* 1: another node keeps copies of ranks' records; by the agent */
    uint32_t ending;  /* 1: the agent ends the ranks; by the agent */
    /* futex word: changes with any slot's `started`, `interruption` or `copied` if a rank waits */
    _Alignas(64) uint32_t gate;
    uint32_t gate_waiters;
    /* which ranks have come to the step that they take together, see taskd_together */
    _Alignas(64) uint64_t together;
    /* futex word: +1 whenever a slot's `damaged` grows or its `asked` is set */
    _Alignas(64) uint32_t bell;
    struct taskd_slot slots[];
};

/* The consistent copy of a slot that taskd_read makes. */
struct taskd_view {
    uint32_t rank, phase, incarnation, interruption;
    int32_t pid;
    uint32_t attached;
    uint64_t step, heartbeat_ns, started; /* started: 0 is "none", UINT64_MAX "all done" */
    uint64_t usual_ns, until_ns, damaged, came_ns, waited_ns;
    int32_t asked;
    uint32_t handles;
};

#pragma GCC visibility push(default)

/* ---- agent's side ---------------------------------------------------------------------------- */

/* Make the page file `path` (mode 0600, must not exist) with `nslots` slots (1..4096) and map it.
 * *page is the mapping. -EEXIST, -ENOSPC (also when /dev/shm is full: the file is written in full,
 * so that no later store raises SIGBUS), -EROFS, -EACCES, -EINVAL. */
int taskd_page_create(const char *path, uint32_t nslots, struct taskd_page **page);
int taskd_page_unmap(struct taskd_page *page);
/* Prepare `slot` for a new process: clears identity, progress, records and damages, makes `alive`
 * usable again; keeps `interruption`, and the page's `pause`. -EBUSY while a living process holds
 * the slot: the lock is in that process's robust list. */
int taskd_slot_reset(struct taskd_page *page, uint32_t slot);
/* Interrupt the rank in `slot` (all ranks: slot == UINT32_MAX): interruption = max(interruption,
 * number), and wake it. */
int taskd_page_interrupt(struct taskd_page *page, uint32_t slot, uint32_t number);
/* The rank in `slot` takes no part for now: no rank waits for it to start a step, until its next
 * process does. */
int taskd_page_away(struct taskd_page *page, uint32_t slot);
/* Set whether another node keeps copies of the ranks' records. Off: no rank waits for copies. On:
 * every slot's count starts over. */
int taskd_page_copying(struct taskd_page *page, int on);
/* Note that another node has a copy of record `number` of the rank in `slot`, and of all earlier
 * ones. */
int taskd_page_copied(struct taskd_page *page, uint32_t slot, uint64_t number);
/* Have every rank of the page stop before it begins `step`; TASKD_NO_PAUSE withdraws that. Ranks
 * check at step boundaries (taskd_pause_step) and publish TASKD_PAUSED; no rank is woken or
 * interrupted. Replaces an earlier step. */
int taskd_page_pause(struct taskd_page *page, uint64_t step);
/* Let a signal end each rank again: see taskd_leave_on. */
int taskd_page_ending(struct taskd_page *page);
/* Copy a slot's fields consistently; -EAGAIN if the writer died during an update (the copy is still
 * filled in). */
int taskd_read(const struct taskd_page *page, uint32_t slot, struct taskd_view *view);
/* Copy up to TASKD_RECORDS complete records, oldest first; returns their number. */
int taskd_records(const struct taskd_page *page, uint32_t slot, struct taskd_record *out);
/* Copy the newest TASKD_DAMAGES complete damages, oldest first; returns their number. `damaged` of
 * taskd_read counts all. */
int taskd_damages(const struct taskd_page *page, uint32_t slot, struct taskd_damage *out);
/* Copy how many attempts have taken how long: TASKD_TIMES counts. out[8 * p + e] are those of at
 * least (8 + e) / 8 * 2^(16 + p) ns and less than the next one's; shorter and longer ones are in
 * the first and in the last. The attempts are those that `usual_ns` is made of. */
int taskd_times(const struct taskd_page *page, uint32_t slot, uint32_t *out);
/* Copy what the rank in `slot` has given to taskd_marked, up to TASKD_GROUPS counts; returns their
 * number, 0 also for none or if it is just being written. */
int taskd_marks(const struct taskd_page *page, uint32_t slot, uint64_t *step,
                uint32_t *generation, struct taskd_count *out);
/* The bell's value; read it before the state that it announces. Never fails. */
uint32_t taskd_page_bell(const struct taskd_page *page);
/* Wait until the bell's value differs from `seen`: 1; 0 after timeout_ms (< 0: no limit). One bell
 * for all slots. */
int taskd_page_wait_bell(struct taskd_page *page, uint32_t seen, int timeout_ms);
/* Block until the main thread that holds `alive` has ended: 0, and 0 again for every later call
 * until the slot is reset or claimed. -ENOLCK if no thread held it (never claimed, or released by
 * taskd_detach), -ETIMEDOUT after timeout_ms (< 0: no limit). Returns within ~50 us of a SIGKILL
 * whatever the size of the process; a pidfd waits until its memory is freed. */
int taskd_wait_death(struct taskd_page *page, uint32_t slot, int timeout_ms);

/* ---- the rank's side ------------------------------------------------------------------------- */

/* Claim `slot` of the page file `path` for this process and its calling (main) thread: map, lock
 * `alive`, write pid, rank and incarnation, install fatal-signal handlers on an alternate stack
 * (chaining to whatever is installed now and later). Called by the constructor if TASKD_SLOT and
 * TASKD_PAGE are set, libtaskd is preloaded and the process is a Python interpreter; otherwise by
 * the Cython binding. Idempotent: 0 if already attached to that slot, -EALREADY if to another,
 * -EBUSY if another live process holds it, -EPROTO for a file that is not a page of this ABI,
 * -EINVAL for a slot that the page does not have, -EPERM if not called by the main thread, and
 * errors of open and mmap. */
int taskd_attach(const char *path, uint32_t slot);
/* Release the slot without a death record; for tests. Forked children are detached by
 * pthread_atfork. Only from the main thread (-EPERM). The mapping stays: another thread may be
 * inside a call. */
int taskd_detach(void);
/* The slot this process holds, or -ENOTCONN. */
int taskd_slot_number(void);
/* 1 if libtaskd was preloaded (so _exit, abort and sigaction are interposed), 0 if loaded later. */
int taskd_preloaded(void);

/* From now on `sig` asks the job to leave: it no longer ends this process, but sets the slot's
 * `asked` and rings the bell. What handler the program has for it, now or later, is called all the
 * same. Once the agent ends its ranks, it acts as if this had never been called. In children forked
 * from now on, up to their exec, it acts only if their parent sends it: a scheduler signals all
 * processes of a job, and loader workers are needed until the state is saved. One signal in the
 * life of a process; 0: it acts as before. -EINVAL for a fatal signal, and for a second one. */
int taskd_leave_on(int sig);

/* Publish step and phase, with the time. ~25-46 ns. By one thread at a time.
 *
 * Maintains `usual_ns`, the duration of an attempt, from the first FETCHING or COMPUTING to
 * COMMITTED. An attempt with any other phase but UPDATING in between, such as INTERRUPTED, does not
 * count; nor does the first that ends after attach, which may compile. A longer one counts at once,
 * a shorter one lowers the value by a sixteenth of the difference: a slowly decaying maximum. */
int taskd_progress(uint64_t step, uint32_t phase);
/* This rank has waited `ns` for others. By the thread that calls taskd_progress. */
int taskd_waited(uint64_t ns);
/* Do not count as hung for `seconds` from now on (0 ends that). Also a heartbeat. From any
 * thread. */
int taskd_patience(uint64_t seconds);
/* The step before which this rank has to stop; TASKD_NO_PAUSE: none, or not attached. Never
 * fails. */
uint64_t taskd_pause_step(void);
/* Publish that the entry state of `step` is completely recorded (TASKD_ALL_DONE: no further step
 * will come); wakes waiters. */
int taskd_started(uint64_t step);
/* Wait until every slot has started >= step: 0. 1 at once on an interruption newer than `built_at`;
 * -ETIMEDOUT after timeout_ms. The usual case, all started already, makes no system call. */
int taskd_wait_started(uint64_t step, uint32_t built_at, int timeout_ms);
/* Give how many collectives this rank has begun in each of up to TASKD_GROUPS groups, before it
 * publishes that it has started `step`. -EINVAL for more. Ranks compare them once all have started:
 * none can be further than the step after. `built_at`: number of the interruption in which the
 * groups were built. */
int taskd_counted(uint64_t step, uint32_t built_at, const struct taskd_count *counts, uint32_t n);
/* The same for the ranks of other nodes, which the manager compares: of a step that all ranks
 * choose, in groups with such ranks. It stays until the next one. */
int taskd_marked(uint64_t step, uint32_t generation, const struct taskd_count *counts, uint32_t n);
/* Whether another rank has given another number than this one for the same group, step and
 * interruption: 1, and the first such group of this rank; 0. */
int taskd_uneven(uint64_t step, uint32_t built_at, uint64_t *group);
/* What the rank in `slot` has given for the group: 1, and the number; 0 if it has given none;
 * -EINVAL for a slot that the page does not have. */
int taskd_count_of(uint32_t slot, uint64_t step, uint32_t built_at, uint64_t group,
                   uint64_t *begun);
/* Wait until every slot's rank has called this for `step` and `built_at`: 0. 1 if an interruption
 * newer than `built_at` comes before the last of them: then all ranks get 1, also those that come
 * later. A rank that has come counts even if it dies. -ETIMEDOUT after timeout_ms: the others may
 * get another answer. `step` and `built_at` count modulo 2^32 and 2^15. */
int taskd_together(uint64_t step, uint32_t built_at, int timeout_ms);
/* Wait until another node has a copy of this rank's record `number`, or no node keeps copies: 0. 1
 * and -ETIMEDOUT as above. */
int taskd_wait_copied(uint64_t number, uint32_t built_at, int timeout_ms);
/* Whether another node keeps copies (1, 0; 0 if not attached), ordered after all earlier writes of
 * this thread: a keeper that starts later finds what was written. Never fails. */
int taskd_copying(void);
/* The number of the newest interruption (0: none yet, or not attached). Never fails. */
uint32_t taskd_interruption(void);
/* Wait for an interruption newer than `built_at`: 1; 0 after timeout_ms. */
int taskd_wait_interruption(uint32_t built_at, int timeout_ms);

/* Sockets that an interruption must cut. begin: remember which descriptors are open and that the
 * communicator about to be built belongs to interruption number `built_at`; every connected
 * AF_INET/AF_INET6 socket that appears until end is covered. end: fix the list as (descriptor,
 * inode). On an interruption newer than `built_at` the interrupter thread calls shutdown(SHUT_RDWR)
 * on each that is still the same connected, not listening stream socket; never close. The first
 * begin starts the thread, so a process without communicators has none. An interruption that is
 * already newer takes effect at once, and repeatedly between begin and end, since a socket may
 * appear after it. begin replaces what was covered before. end without begin: -EINVAL. end returns
 * the number of sockets (<= 65536). */
int taskd_sockets_begin(uint32_t built_at);
int taskd_sockets_end(void);
/* Like begin, but what is covered stays covered: for another communicator beside the present ones,
 * of the same interruption number. Returns 1; 0 if no list is fixed, without effect: call no end
 * then. */
int taskd_sockets_extend(void);
/* Stop covering sockets. */
int taskd_sockets_clear(void);
/* Cut the sockets now as an interruption would; returns the number shut down. */
int taskd_sockets_cut(void);
/* Copy up to `max` descriptors of the list fixed by end that are still the same socket, even if its
 * connection has ended meanwhile (see TCP_INFO). Returns their number; 0 before end and after
 * clear. */
int taskd_sockets_list(int *fds, int max);
/* From the next end on, set TCP_USER_TIMEOUT on every covered connection: the kernel ends one whose
 * sent bytes stay unacknowledged that long. 0, the default, leaves connections as they are. -EINVAL
 * above INT_MAX. */
int taskd_sockets_limit(uint32_t milliseconds);

/* 1 if, since the last taskd_sockets_begin or taskd_streams_begin, a message on a broken connection
 * was completed with zeros so that no thread waits for it forever (see streams.c): what collectives
 * returned since then must not be used. Needs preloading. */
int taskd_torn(void);
/* For a rank that covers no sockets: all connections are new, between two messages; forget what
 * happened to the former ones. */
void taskd_streams_begin(void);

/* ---- memory that loses its content ----------------------------------------------------------- */

/* An uncorrectable memory error takes one page away from a process and raises SIGBUS at the
 * instruction that touches it. If the page lies wholly inside memory known to hold only numbers, an
 * attached process is not killed: the page is replaced by a clean one, the damage is recorded here
 * and in the slot, the bell is rung, and the instruction runs again and reads zeros. The worker
 * checks taskd_spoiled before it keeps a result. All other pages, such as code and bookkeeping,
 * kill as always, and so does a page that is lost again at once.
 *
 * Known are the ranges registered here and, if libtaskd is preloaded, the allocations that it
 * tracks. The damage counts before any thread can read the first zero. A page that only the kernel
 * touches raises no signal: there the interposed recv and writev touch it in the kernel's place and
 * try again. */

enum taskd_memory {
    TASKD_MEMORY_TENSORS = 1, /* private anonymous memory */
    TASKD_MEMORY_SHARED = 2,  /* a MAP_SHARED mapping of a file in /dev/shm; it gets a hole there */
};
/* Replace the list of ranges of that kind: n pairs (begin, bytes), in any order; those that touch
 * or overlap count as one. Register again before a range is unmapped or released: a page of its
 * next owner would be zeroed too. No memory that a device writes to. -EINVAL for an unknown kind or
 * a range that wraps around, -ENOMEM; the old list then stays. */
int taskd_memory_register(int kind, const uint64_t *ranges, size_t n);

/* The number of damages since attach. A thread that reads zeros sees a count that includes them.
 * Never fails. */
uint64_t taskd_damaged(void);
/* Copy the newest `max` damages of this process (TASKD_DAMAGES_LISTED are kept), oldest first;
 * returns their number. */
int taskd_damage_list(struct taskd_damage *out, int max);
/* Accept damages up to number `count`: their content has been restored. Never decreases. */
void taskd_damage_accept(uint64_t count);
/* Why results must not be used, as a sum; 0: they may be. Cheap enough for several calls per
 * step. */
#define TASKD_SPOILED_TORN 1    /* taskd_torn */
#define TASKD_SPOILED_DAMAGED 2 /* there are damages not yet accepted */
int taskd_spoiled(void);

/* Allocations of two pages or more are tracked if libtaskd is preloaded and the process is
 * attached, in a table of up to 65536; what does not fit is not tracked. free and realloc remove an
 * entry before the memory can get another owner. Other callers of these functions keep objects and
 * machine code in their memory, so only two kinds are tracked. */
enum taskd_allocation {
    TASKD_ALLOCATION_TENSOR = 1, /* by posix_memalign, called from torch's libc10.so */
    TASKD_ALLOCATION_GLOO = 2,   /* by malloc, in a thread named pt_gloo_runloop: gloo's buffers */
};
/* Stamp allocations from now on with attempt `number`. */
void taskd_attempt(uint64_t number);
/* While on, stamp the calling thread's allocations as TASKD_SCRATCH. */
void taskd_scratch(int on);
/* The tracked allocation that contains `address`: 1; 0 if there is none. Each pointer may be
 * NULL. */
int taskd_allocation_of(uint64_t address, uint64_t *base, uint64_t *size, uint64_t *born);

/* Inject a memory error, for tests and drills. The page at `address` loses its content, and the
 * next touch raises a real SIGBUS (BUS_ADRERR or BUS_MCEERR_AR, depending on the kernel), by
 * userfaultfd's UFFDIO_POISON. For anonymous memory or a MAP_SHARED file in /dev/shm; a file's page
 * is lost to this process only, and its replacement has the old content. -ENOSYS without
 * userfaultfd, -EOPNOTSUPP before Linux 6.6, -EPERM where a sandbox forbids it, or -errno. */
int taskd_poison(void *address);
/* Poison the first whole page of the next allocation of that kind (enum taskd_allocation) that has
 * one; 0 cancels that. -EINVAL. */
int taskd_poison_next(int kind);
/* The number of allocations poisoned that way. */
uint64_t taskd_poisoned(void);

/* ---- memory that several processes share ----------------------------------------------------- */

/* Store `value` at `address` (8-byte aligned, in any mapping) after everything written before
 * it. */
void taskd_store_release(uint64_t *address, uint64_t value);
uint64_t taskd_load_acquire(const uint64_t *address);

/* Copy data that is not read soon, bypassing the caches if the processor can and it is not small:
 * that takes three quarters of the time for megabytes and evicts nothing. Ordered before a later
 * taskd_store_release. */
void taskd_copy_away(void *to, const void *from, size_t bytes);

/* A 64-bit checksum (XXH64) of memory; detects accidental damage, not forgery. */
uint64_t taskd_checksum(const void *data, size_t bytes, uint64_t seed);

uint32_t taskd_abi(void);
/* The version of the package that this library was built with, as `0.1.0`. Static; never fails. */
const char *taskd_version(void);

#pragma GCC visibility pop

#endif
