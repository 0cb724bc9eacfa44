/* libtaskd: what a training process and its agent share without a system call.
 *
 * One *state page* per node, a file in /dev/shm made by the agent, holds one slot per local rank. A rank publishes where it
 * is; the agent asks it to pause; a rank that dies leaves a record of why. Nothing here allocates after attach, but for the
 * thread that the first taskd_sockets_begin starts, and what runs in a signal handler is async-signal-safe.
 *
 * Every function returns 0 or a positive value on success and -errno on failure, unless its comment says otherwise.
 * "Attached" means: this process has claimed a slot. Calls that need that return -ENOTCONN without it.
 */
#ifndef LIBTASKD_H
#define LIBTASKD_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define TASKD_ABI 1u
#define TASKD_MAGIC 0x444b5354u /* "TSKD" */
#define TASKD_RECORDS 4
#define TASKD_ALL_DONE UINT64_MAX /* to taskd_started: this rank will not start another step */
#define TASKD_NO_RANK UINT32_MAX  /* `rank` of a process that was not told its RANK */

/* What a rank is doing; numbers are part of the ABI. */
enum taskd_phase {
    TASKD_SETUP = 0,     /* before its first attempt */
    TASKD_COMPUTING = 1, /* inside an attempt, training state untouched so far */
    TASKD_UPDATING = 2,  /* inside or after the optimizer's update of this attempt */
    TASKD_COMMITTED = 3, /* the attempt ended; between steps */
    TASKD_PAUSED = 4,    /* left its collectives, waits for orders */
    TASKD_DONE = 5,      /* finished its last step */
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

/* One local rank. 512 bytes; the lines that different processes write are 64 bytes apart. */
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
    /* line 2: orders, by the agent */
    _Alignas(64) uint32_t pause; /* futex word: number of the newest pause request, never decreasing */
    /* line 3: held by the rank's main thread for as long as it lives; the kernel tells the waiter when it dies */
    _Alignas(64) pthread_mutex_t alive; /* robust, process-shared */
    struct taskd_record records[TASKD_RECORDS];
};

struct taskd_page {
    _Alignas(64) uint32_t magic;
    uint32_t abi;
    uint32_t nslots;
    uint32_t slot_bytes;
    _Alignas(64) uint32_t gate;  /* futex word: changes whenever somebody's `started` or `pause` does and somebody waits */
    uint32_t gate_waiters;
    struct taskd_slot slots[];
};

/* What taskd_read copies out of a slot, consistently. */
struct taskd_view {
    uint32_t rank, phase, incarnation, pause;
    int32_t pid;
    uint32_t attached;
    uint64_t step, heartbeat_ns, started; /* started: as in the slot, so 0 is "none" and UINT64_MAX "all done" */
};

#pragma GCC visibility push(default)

/* ---- agent's side ------------------------------------------------------------------------------------------------ */

/* Make the page file `path` (mode 0600, must not exist) with `nslots` slots (1..4096) and map it.
 * *page is the mapping. -EEXIST, -ENOSPC (also when /dev/shm is full: the file is written once, so that a later store
 * cannot raise SIGBUS), -EROFS, -EACCES, -EINVAL. */
int taskd_page_create(const char *path, uint32_t nslots, struct taskd_page **page);
int taskd_page_unmap(struct taskd_page *page);
/* Prepare slot `slot` for a new process: clears identity, progress and records, makes `alive` usable
 * again; keeps `pause`. -EBUSY while a living process holds the slot: the kernel has its lock in a list. */
int taskd_slot_reset(struct taskd_page *page, uint32_t slot);
/* Ask the rank in `slot` (or every one: slot == UINT32_MAX) to pause: pause = max(pause, number); wakes it. */
int taskd_page_pause(struct taskd_page *page, uint32_t slot, uint32_t number);
/* A consistent copy of a slot's fields; -EAGAIN when the writer died inside an update (the copy is still filled in). */
int taskd_read(const struct taskd_page *page, uint32_t slot, struct taskd_view *view);
/* Copy up to TASKD_RECORDS complete records, oldest first; returns how many. */
int taskd_records(const struct taskd_page *page, uint32_t slot, struct taskd_record *out);
/* Block until the main thread that holds `alive` is gone: 0, and 0 again for every later call until the slot is reset or
 * claimed. -ENOLCK when nobody held it (never claimed, or let go by taskd_detach), -ETIMEDOUT after timeout_ms
 * (< 0: no limit). Told within ~50 us of a SIGKILL whatever the process's memory; pidfd has to wait for its teardown. */
int taskd_wait_death(struct taskd_page *page, uint32_t slot, int timeout_ms);

/* ---- the rank's side --------------------------------------------------------------------------------------------- */

/* Claim `slot` of the page file `path` for this process and its calling (main) thread: map, lock `alive`, write pid, rank and
 * incarnation, install fatal-signal handlers on an alternate stack (chaining to whatever is installed now and later). Called by the constructor where TASKD_SLOT and TASKD_PAGE are set, libtaskd is preloaded and the
 * process is a Python interpreter; else by the Cython binding. Idempotent: 0 when already attached to that slot, -EALREADY for
 * another slot, -EBUSY when another live process holds it, -EPROTO for a file that is no page or one of another ABI,
 * -EINVAL for a slot that the page does not have, -EPERM when not called by the main thread, and what open/mmap say. */
int taskd_attach(const char *path, uint32_t slot);
/* Let go of the slot without a death record; for tests. Forked children are detached by pthread_atfork. Only the main thread
 * may (-EPERM). The mapping stays: another thread may be inside a call. */
int taskd_detach(void);
/* The slot this process holds, or -ENOTCONN. */
int taskd_slot_number(void);
/* 1 when libtaskd was preloaded (so _exit, abort and sigaction are interposed), 0 when it was loaded later. */
int taskd_preloaded(void);

/* Publish step and phase, with the time. ~25-46 ns. */
int taskd_progress(uint64_t step, uint32_t phase);
/* The entry state of `step` is recorded completely (TASKD_ALL_DONE: no further step will come); wakes waiters. */
int taskd_started(uint64_t step);
/* Wait until every slot has started >= step: 0. 1 at once when a pause newer than `era` is asked for; -ETIMEDOUT after
 * timeout_ms. The usual case, all started already, makes no system call. */
int taskd_wait_started(uint64_t step, uint32_t era, int timeout_ms);
/* Number of the newest pause request (0: none ever, or not attached). Never fails. */
uint32_t taskd_pause_number(void);
/* Wait until a pause newer than `era` is asked for: 1; 0 after timeout_ms. */
int taskd_wait_pause(uint32_t era, int timeout_ms);

/* Sockets that a pause must cut. begin: remember which descriptors are open now and that the communicator about to be built
 * belongs to pause number `era`; from here until end, every connected AF_INET/AF_INET6 socket that appears is covered. end: fix
 * the list as (descriptor, inode). The interrupter thread, when it sees a pause newer than `era`, calls
 * shutdown(SHUT_RDWR) on each that is still the same connected, not listening stream socket; never close. The thread is
 * started by the first begin, so that a process without communicators stays without it. A pause that is already
 * newer takes effect at once. Between begin and end it takes effect again and again, for a socket may appear after the pause came.
 * begin replaces what was covered before. end without begin: -EINVAL. end returns the number of sockets (<= 65536). */
int taskd_sockets_begin(uint32_t era);
int taskd_sockets_end(void);
/* Cover nothing any more. */
int taskd_sockets_clear(void);
/* Do now what a pause would do; returns how many sockets were shut down. */
int taskd_sockets_cut(void);

/* 1 when, since the last taskd_sockets_begin, a message on a broken connection was brought to a false end so that nobody waits for
 * it for ever (see streams.c): what collectives returned since then must not be used. Needs preloading. */
int taskd_torn(void);

/* Store `value` at `address` (8-byte aligned, in any mapping) after everything written before it. */
void taskd_store_release(uint64_t *address, uint64_t value);
uint64_t taskd_load_acquire(const uint64_t *address);

/* A 64-bit checksum (XXH64) of memory; finds what broke by accident, not what somebody forged. */
uint64_t taskd_checksum(const void *data, size_t bytes, uint64_t seed);

uint32_t taskd_abi(void);

#pragma GCC visibility pop

#endif
