/* libtaskd: what a training process and its agent share without a system call.
 *
 * One *state page* per node, a file in /dev/shm made by the agent, holds one slot per local rank. A rank publishes where it
 * is; the agent asks it to stop; a rank that dies leaves a record of why, one that loses memory and lives says so. Nothing here
 * allocates after attach, but for the thread that the first taskd_sockets_begin starts and the lists of
 * taskd_memory_register, and what runs in a signal handler is async-signal-safe.
 *
 * Every function returns 0 or a positive value on success and -errno on failure, unless its comment says otherwise.
 * "Attached" means: this process has claimed a slot. Calls that need that return -ENOTCONN without it.
 */
#ifndef LIBTASKD_H
#define LIBTASKD_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define TASKD_ABI 3u
#define TASKD_MAGIC 0x444b5354u /* "TSKD" */
#define TASKD_RECORDS 4
#define TASKD_DAMAGES 4         /* in a slot; the process itself keeps more, see taskd_damage_list */
#define TASKD_DAMAGES_LISTED 64 /* by taskd_damage_list */
#define TASKD_ALL_DONE UINT64_MAX /* to taskd_started: this rank will not start another step */
#define TASKD_NO_RANK UINT32_MAX  /* `rank` of a process that was not told its RANK */
#define TASKD_NO_PAUSE UINT64_MAX  /* to taskd_page_pause and from taskd_pause_step: nobody is asked to stop */
#define TASKD_SCRATCH UINT64_MAX  /* `born` of an allocation that every repair makes again */

/* What a rank is doing; numbers are part of the ABI. */
enum taskd_phase {
    TASKD_SETUP = 0,     /* before its first attempt */
    TASKD_COMPUTING = 1, /* inside an attempt, training state untouched so far */
    TASKD_UPDATING = 2,  /* inside or after the optimizer's update of this attempt */
    TASKD_COMMITTED = 3, /* the attempt ended; between steps */
    TASKD_INTERRUPTED = 4,    /* left its collectives, waits for orders */
    TASKD_DONE = 5,      /* finished its last step */
    TASKD_PAUSED = 6,      /* stopped at a step boundary on request, see taskd_page_pause */
    TASKD_FETCHING = 7,  /* waits for its data loader, before COMPUTING of the same step */
};

enum taskd_record_kind {
    TASKD_RECORD_NONE = 0,
    TASKD_RECORD_SIGNAL = 1, /* a fatal signal was delivered: sig, code, addr, ip */
    TASKD_RECORD_EXIT = 2,   /* _exit or exit_group through libc: code is the status */
    TASKD_RECORD_ABORT = 3,  /* abort() was called */
};

/* Why a process ended, written at the moment it did. 64 bytes. */
struct taskd_record {
    uint32_t kind; /* enum taskd_record_kind; written last */
    int32_t sig;
    int32_t code; /* si_code, or the exit status */
    int32_t pid;
    int32_t tid;
    uint32_t phase; /* the rank's phase and step at that moment */
    uint64_t step;
    uint64_t addr; /* si_addr: the true fault address, also with faulthandler enabled */
    uint64_t ip;   /* instruction pointer, 0 where unknown */
    uint64_t mono_ns; /* CLOCK_MONOTONIC */
    uint64_t order; /* 1, 2, ... in the order of writing: the newest TASKD_RECORDS are kept */
};

/* Where a page that lost its content lay. */
enum taskd_damage_kind {
    TASKD_DAMAGE_REGISTERED = 1, /* in memory named to taskd_memory_register */
    TASKD_DAMAGE_ALLOCATED = 2,  /* in an allocation that was seen being made */
};

/* A page of memory that lost its content and was replaced by a clean one under the program, which reads zeros. 64 bytes. */
struct taskd_damage {
    uint64_t addr;    /* first byte of the page */
    uint64_t bytes;   /* of the page */
    uint64_t base;    /* the allocation, or the registered range, that the page lies in */
    uint64_t size;    /* its bytes */
    uint64_t born;    /* the allocation's stamp, see taskd_attempt; 0 for a registered range */
    uint64_t mono_ns; /* CLOCK_MONOTONIC */
    uint32_t kind;    /* enum taskd_damage_kind */
    int32_t tid;      /* who touched it */
    uint64_t number;  /* 1, 2, ... since attach; written last */
};

/* One local rank. 832 bytes; the lines that different processes write are 64 bytes apart. */
struct taskd_slot {
    /* line 0: identity, by the rank at attach */
    _Alignas(64) uint32_t rank; /* global rank, from RANK */
    int32_t pid;
    uint32_t incarnation; /* from TASKD_INCARNATION: 0 for the first process in this slot, +1 for each replacement */
    uint32_t attached;
    /* line 1: where the rank is, by the rank (seqlock: odd `seq` while being written) */
    _Alignas(64) uint32_t seq;
    uint32_t phase;
    uint64_t step;
    uint64_t heartbeat_ns; /* CLOCK_MONOTONIC of the last taskd_progress */
    uint64_t started;      /* steps whose entry state is recorded completely: last one + 1, 0 for none; see taskd_started */
    uint64_t usual_ns;     /* how long an attempt usually takes, see taskd_progress; 0 while unknown */
    uint64_t until_ns;     /* CLOCK_MONOTONIC up to which the rank is not to be called hung, see taskd_patience; 0: none */
    /* line 2: orders, by the agent */
    _Alignas(64) uint32_t interruption; /* futex word: number of the newest interruption request, never decreasing */
    uint64_t copied; /* number of the newest record that another node has a copy of, see taskd_wait_copied */
    /* line 3: held by the rank's main thread for as long as it lives; the kernel tells the waiter when it dies */
    _Alignas(64) pthread_mutex_t alive; /* robust, process-shared */
    struct taskd_record records[TASKD_RECORDS];
    /* lines 8 to 12: memory that lost its content, by whichever thread of the rank touched it */
    _Alignas(64) uint64_t damaged; /* how many since attach */
    _Alignas(64) struct taskd_damage damages[TASKD_DAMAGES]; /* the newest */
};

struct taskd_page {
    _Alignas(64) uint32_t magic;
    uint32_t abi;
    uint32_t nslots;
    uint32_t slot_bytes;
    uint64_t pause;               /* the step before which ranks stop on request, TASKD_NO_PAUSE for none; by the agent */
    uint32_t copying;            /* 1: another node keeps copies of the ranks' records; by the agent */
    _Alignas(64) uint32_t gate;  /* futex word: changes whenever somebody's `started`, `interruption` or `copied` does and somebody waits */
    uint32_t gate_waiters;
    _Alignas(64) uint32_t bell;  /* futex word: +1 whenever somebody's `damaged` grows */
    struct taskd_slot slots[];
};

/* What taskd_read copies out of a slot, consistently. */
struct taskd_view {
    uint32_t rank, phase, incarnation, interruption;
    int32_t pid;
    uint32_t attached;
    uint64_t step, heartbeat_ns, started; /* started: as in the slot, so 0 is "none" and UINT64_MAX "all done" */
    uint64_t usual_ns, until_ns, damaged;
};

#pragma GCC visibility push(default)

/* ---- agent's side ------------------------------------------------------------------------------------------------ */

/* Make the page file `path` (mode 0600, must not exist) with `nslots` slots (1..4096) and map it.
 * *page is the mapping. -EEXIST, -ENOSPC (also when /dev/shm is full: the file is written once, so that a later store
 * cannot raise SIGBUS), -EROFS, -EACCES, -EINVAL. */
int taskd_page_create(const char *path, uint32_t nslots, struct taskd_page **page);
int taskd_page_unmap(struct taskd_page *page);
/* Prepare slot `slot` for a new process: clears identity, progress, records and damages, makes `alive` usable
 * again; keeps `interruption`, and the page's `pause`. -EBUSY while a living process holds the slot: the kernel has its lock in a list. */
int taskd_slot_reset(struct taskd_page *page, uint32_t slot);
/* Ask the rank in `slot` (or every one: slot == UINT32_MAX) to stop: interruption = max(interruption, number); wakes it. */
int taskd_page_interrupt(struct taskd_page *page, uint32_t slot, uint32_t number);
/* Whether another node keeps copies of the ranks' records. Off: no rank waits for that any more. On: every slot's count begins anew. */
int taskd_page_copying(struct taskd_page *page, int on);
/* Another node has a copy of record `number` of the rank in `slot`, and of all before. */
int taskd_page_copied(struct taskd_page *page, uint32_t slot, uint64_t number);
/* Ask every rank of the page to stop before it begins `step`; TASKD_NO_PAUSE takes that back. Ranks look at step boundaries
 * (taskd_pause_step) and publish TASKD_PAUSED; nothing is woken or interrupted. Replaces the step asked for before. */
int taskd_page_pause(struct taskd_page *page, uint64_t step);
/* A consistent copy of a slot's fields; -EAGAIN when the writer died inside an update (the copy is still filled in). */
int taskd_read(const struct taskd_page *page, uint32_t slot, struct taskd_view *view);
/* Copy up to TASKD_RECORDS complete records, oldest first; returns how many. */
int taskd_records(const struct taskd_page *page, uint32_t slot, struct taskd_record *out);
/* Copy up to TASKD_DAMAGES complete damages, the newest, oldest first; returns how many. `damaged` of taskd_read counts all. */
int taskd_damages(const struct taskd_page *page, uint32_t slot, struct taskd_damage *out);
/* The bell's value; to be read before looking at what it announces. Never fails. */
uint32_t taskd_page_bell(const struct taskd_page *page);
/* Wait until the bell's value is another than `seen`: 1; 0 after timeout_ms (< 0: no limit). One bell for all slots. */
int taskd_page_wait_bell(struct taskd_page *page, uint32_t seen, int timeout_ms);
/* Block until the main thread that holds `alive` is gone: 0, and 0 again for every later call until the slot is reset or
 * claimed. -ENOLCK when nobody held it (never claimed, or let go by taskd_detach), -ETIMEDOUT after timeout_ms
 * (< 0: no limit). Told within ~50 us of a SIGKILL whatever the process's memory; pidfd has to wait for its teardown. */
int taskd_wait_death(struct taskd_page *page, uint32_t slot, int timeout_ms);

/* ---- the rank's side --------------------------------------------------------------------------------------------- */

/* Claim `slot` of the page file `path` for this process and its calling (main) thread: map, lock `alive`, write pid, rank and
 * incarnation, install fatal-signal handlers on an alternate stack (chaining to whatever is installed now and later). Called by
 * the constructor where TASKD_SLOT and TASKD_PAGE are set, libtaskd is preloaded and the process is a Python interpreter; else
 * by the Cython binding. Idempotent: 0 when already attached to that slot, -EALREADY for another slot, -EBUSY when another live
 * process holds it, -EPROTO for a file that is no page or one of another ABI, -EINVAL for a slot that the page does not have,
 * -EPERM when not called by the main thread, and what open/mmap say. */
int taskd_attach(const char *path, uint32_t slot);
/* Let go of the slot without a death record; for tests. Forked children are detached by pthread_atfork. Only the main thread
 * may (-EPERM). The mapping stays: another thread may be inside a call. */
int taskd_detach(void);
/* The slot this process holds, or -ENOTCONN. */
int taskd_slot_number(void);
/* 1 when libtaskd was preloaded (so _exit, abort and sigaction are interposed), 0 when it was loaded later. */
int taskd_preloaded(void);

/* Publish step and phase, with the time. ~25-46 ns. By one thread at a time.
 *
 * Keeps `usual_ns`: what an attempt takes, from the first FETCHING or COMPUTING to COMMITTED; any other phase but UPDATING in
 * between, such as INTERRUPTED, and the attempt does not count. Nor does the first that ends after attach, which may compile.
 * A longer one is believed at once, shorter ones lower it by a sixteenth of the difference: a slowly decaying maximum. */
int taskd_progress(uint64_t step, uint32_t phase);
/* Ask not to be called hung for `seconds` from now on (0: no more). Counts as a sign of life. From any thread. */
int taskd_patience(uint64_t seconds);
/* The step before which this rank is asked to stop; TASKD_NO_PAUSE: none, or not attached. Never fails. */
uint64_t taskd_pause_step(void);
/* The entry state of `step` is recorded completely (TASKD_ALL_DONE: no further step will come); wakes waiters. */
int taskd_started(uint64_t step);
/* Wait until every slot has started >= step: 0. 1 at once when an interruption newer than `built_at` is asked for; -ETIMEDOUT after
 * timeout_ms. The usual case, all started already, makes no system call. */
int taskd_wait_started(uint64_t step, uint32_t built_at, int timeout_ms);
/* Wait until another node has a copy of this rank's record `number`, or nobody keeps copies: 0. 1 and -ETIMEDOUT as above. */
int taskd_wait_copied(uint64_t number, uint32_t built_at, int timeout_ms);
/* Whether another node keeps copies (1, 0; 0 too when not attached), seen after everything this
 * thread has written: who starts to keep them after that finds what was written. Never fails. */
int taskd_copying(void);
/* Number of the newest interruption request (0: none ever, or not attached). Never fails. */
uint32_t taskd_interruption(void);
/* Wait until an interruption newer than `built_at` is asked for: 1; 0 after timeout_ms. */
int taskd_wait_interruption(uint32_t built_at, int timeout_ms);

/* Sockets that an interruption must cut. begin: remember which descriptors are open now and that the communicator about to be built
 * belongs to interruption number `built_at`; from here until end, every connected AF_INET/AF_INET6 socket that appears is covered. end: fix
 * the list as (descriptor, inode). The interrupter thread, when it sees an interruption newer than `built_at`, calls
 * shutdown(SHUT_RDWR) on each that is still the same connected, not listening stream socket; never close. The thread is
 * started by the first begin, so that a process without communicators stays without it. An interruption that is already
 * newer takes effect at once. Between begin and end it takes effect again and again, for a socket may appear after the interruption came.
 * begin replaces what was covered before. end without begin: -EINVAL. end returns the number of sockets (<= 65536). */
int taskd_sockets_begin(uint32_t built_at);
int taskd_sockets_end(void);
/* Cover nothing any more. */
int taskd_sockets_clear(void);
/* Do now what an interruption would do; returns how many sockets were shut down. */
int taskd_sockets_cut(void);
/* Copy up to `max` of the descriptors on the list that end fixed, those that still are the same socket, also when its
 * connection has ended meanwhile (TCP_INFO tells). Returns how many; 0 before end and after clear. */
int taskd_sockets_list(int *fds, int max);
/* From the next end on, every covered connection gets TCP_USER_TIMEOUT: the kernel ends one on which sent bytes stay
 * unacknowledged for so long. 0, the default, leaves connections as they are. -EINVAL above INT_MAX. */
int taskd_sockets_limit(uint32_t milliseconds);

/* 1 when, since the last taskd_sockets_begin, a message on a broken connection was brought to a false end so that nobody waits for
 * it forever (see streams.c): what collectives returned since then must not be used. Needs preloading. */
int taskd_torn(void);

/* ---- memory that loses its content ------------------------------------------------------------------------------- */

/* An uncorrectable memory error takes one page away from a process and raises SIGBUS at the instruction that touches it. Where
 * the page lies, whole, inside memory that is known to hold nothing but numbers, an attached process is not killed: the page is
 * replaced by a clean one, the damage is noted here and in the slot, the bell is rung, and the instruction runs again and
 * reads zeros. Whoever computes with them asks taskd_spoiled before it keeps the result. All other pages, code and
 * bookkeeping among them, kill as ever, and so does a page that is lost again at once.
 *
 * Known are the ranges registered here and, where libtaskd is preloaded, the allocations it has seen being made. The damage
 * counts before anybody can read the first zero. A page that only the kernel touches raises no signal: there recv and writev,
 * where preloaded, touch it in its place and do their work again. */

enum taskd_memory {
    TASKD_MEMORY_TENSORS = 1, /* private anonymous memory */
    TASKD_MEMORY_SHARED = 2,  /* a MAP_SHARED mapping of a file that can have holes, as in /dev/shm; the file gets one there */
};
/* Replace the list of ranges of that kind: n pairs (begin, bytes), in any order; those that touch or overlap count as one.
 * Register anew before a range is unmapped or given back: a page of its next owner would be zeroed too. No memory that a
 * device writes to. -EINVAL for another kind or a range that wraps around, -ENOMEM; the old list then stays. */
int taskd_memory_register(int kind, const uint64_t *ranges, size_t n);

/* How many damages since attach. In order: a reader of zeros sees the count that includes them. Never fails. */
uint64_t taskd_damaged(void);
/* Copy the newest `max` damages of this process (TASKD_DAMAGES_LISTED are kept), oldest first; returns how many. */
int taskd_damage_list(struct taskd_damage *out, int max);
/* What was lost by damages up to number `count` has been put back. Never decreasing. */
void taskd_damage_accept(uint64_t count);
/* Why what was computed must not be used, as a sum; 0: it may be. Cheap enough to ask several times a step. */
#define TASKD_SPOILED_TORN 1    /* taskd_torn */
#define TASKD_SPOILED_DAMAGED 2 /* there are damages that were not accepted */
int taskd_spoiled(void);

/* Allocations are followed where libtaskd is preloaded and the process is attached, from two pages on: a table has room for
 * up to 65536 at a time and leaves out what it has no room for; free and realloc take entries out before the memory can have
 * another owner. Other users of the same functions keep objects and machine code in what they get, so only two are followed. */
enum taskd_allocation {
    TASKD_ALLOCATION_TENSOR = 1, /* by posix_memalign, called from torch's libc10.so */
    TASKD_ALLOCATION_GLOO = 2,   /* by malloc, in a thread with the name pt_gloo_runloop: gloo's own buffers */
};
/* Allocations from here on are born in attempt `number`. */
void taskd_attempt(uint64_t number);
/* While on, allocations of the calling thread are born as TASKD_SCRATCH. */
void taskd_scratch(int on);
/* The followed allocation that `address` lies in: 1; 0 when there is none. Each pointer may be NULL. */
int taskd_allocation_of(uint64_t address, uint64_t *base, uint64_t *size, uint64_t *born);

/* Faults on purpose, for tests and drills. The page that holds `address` loses its content, and the next touch raises a real
 * SIGBUS (BUS_ADRERR or BUS_MCEERR_AR, by kernel): userfaultfd's UFFDIO_POISON. Anonymous memory, or a MAP_SHARED file
 * in /dev/shm: of that the page is lost to this process only, and given back as it was. -ENOSYS without userfaultfd, -EOPNOTSUPP before Linux 6.6, -EPERM where a sandbox forbids it, or -errno. */
int taskd_poison(void *address);
/* The next allocation of that kind (enum taskd_allocation) that has a whole page inside is handed out with its first whole page
 * poisoned; 0 takes that back. -EINVAL. */
int taskd_poison_next(int kind);
/* How many allocations have been poisoned so. */
uint64_t taskd_poisoned(void);

/* ---- memory that several processes share ------------------------------------------------------------------------- */

/* Store `value` at `address` (8-byte aligned, in any mapping) after everything written before it. */
void taskd_store_release(uint64_t *address, uint64_t value);
uint64_t taskd_load_acquire(const uint64_t *address);

/* Copy what nobody reads soon: past the caches where the processor can, which takes three quarters
 * of the time for megabytes, and leaves what is in them. Ordered before a taskd_store_release that
 * comes later. */
void taskd_copy_away(void *to, const void *from, size_t bytes);

/* A 64-bit checksum (XXH64) of memory; finds what broke by accident, not what somebody forged. */
uint64_t taskd_checksum(const void *data, size_t bytes, uint64_t seed);

uint32_t taskd_abi(void);
/* The version of the package that this library was built with, as `0.1.0`. Static; never fails. */
const char *taskd_version(void);

#pragma GCC visibility pop

#endif
