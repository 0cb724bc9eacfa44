/* Declarations shared by the files of libtaskd. Nothing here is exported. */
#ifndef TASKD_INTERNAL_H
#define TASKD_INTERNAL_H

#define _GNU_SOURCE 1

#include "libtaskd.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define TASKD_EXPORT __attribute__((visibility("default")))

_Static_assert(sizeof(struct taskd_record) == 64, "a record is one line");
_Static_assert(sizeof(struct taskd_damage) == 64, "a damage is one line");
_Static_assert(sizeof(struct taskd_slot) == 3200, "a slot is fifty lines");
_Static_assert(offsetof(struct taskd_page, slots) == 256, "four lines precede the slots");

/* This process's claim. The other fields are valid while `slot` is not NULL. */
struct taskd_self {
    struct taskd_slot *slot;
    struct taskd_page *page;
    uint32_t index;
    int32_t pid; /* differs from getpid() in a child of vfork or a bare clone */
    uint64_t records;
    int32_t aborting; /* tid inside abort(): the SIGABRT that follows is the same death */
    char path[PATH_MAX];
};

extern struct taskd_self taskd_self;

static inline struct taskd_slot *taskd_my_slot(void)
{
    return __atomic_load_n(&taskd_self.slot, __ATOMIC_ACQUIRE);
}

/* The slot, if this process itself claimed it. */
static inline struct taskd_slot *taskd_own_slot(void)
{
    struct taskd_slot *slot = taskd_my_slot();
    return slot != NULL && getpid() == taskd_self.pid ? slot : NULL;
}

static inline int32_t taskd_tid(void)
{
    return (int32_t)syscall(SYS_gettid);
}

static inline uint64_t taskd_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A point in time on taskd_now's clock; UINT64_MAX is never. */
static inline uint64_t taskd_deadline(int timeout_ms)
{
    return timeout_ms < 0 ? UINT64_MAX : taskd_now() + (uint64_t)timeout_ms * 1000000u;
}

static inline void taskd_sleep_us(long us)
{
    struct timespec t = {.tv_sec = 0, .tv_nsec = us * 1000};
    nanosleep(&t, NULL);
}

/* Several processes map the words, so no FUTEX_PRIVATE_FLAG. */
static inline void taskd_wake(uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Have waiters at the gate look again. */
void taskd_open_gate(struct taskd_page *page);

/* Sleep while *word == seen. false: the deadline has passed. May wake spuriously. */
static inline bool taskd_wait(uint32_t *word, uint32_t seen, uint64_t deadline)
{
    struct timespec left, *limit = NULL;
    if (deadline != UINT64_MAX) {
        uint64_t now = taskd_now();
        if (now >= deadline)
            return false;
        left.tv_sec = (time_t)((deadline - now) / 1000000000u);
        left.tv_nsec = (long)((deadline - now) % 1000000000u);
        limit = &left;
    }
    syscall(SYS_futex, word, FUTEX_WAIT, seen, limit, NULL, 0);
    return true;
}

/* page.c */
size_t taskd_page_bytes(uint32_t nslots);
/* 0, EOWNERDEAD (lock held, made consistent) or -errno */
int taskd_alive_lock(pthread_mutex_t *alive, int timeout_ms);

/* gate.c */
void taskd_publish_first(struct taskd_slot *slot);

/* records.c */
void taskd_record(enum taskd_record_kind kind, int sig, int code, uint64_t addr, uint64_t ip);

/* signals.c */
bool taskd_is_fatal(int sig);
void taskd_signals_install(void);
void taskd_signals_restore(void);
void taskd_signals_child(void);
bool taskd_signals_virtual(int sig, const struct sigaction *act, struct sigaction *old);

/* interpose.c */
void taskd_real_resolve(void);
int taskd_real_sigaction(int sig, const struct sigaction *act, struct sigaction *old);

/* registered.c */
bool taskd_registered(int kind, uint64_t begin, uint64_t end, uint64_t *base, uint64_t *size);
void taskd_registered_child(void);

/* damage.c */
void taskd_damage_begin(struct taskd_slot *slot);
void taskd_damage_child(void);
bool taskd_damage_contain(const siginfo_t *info, uint64_t ip);
bool taskd_damage_touch(const struct iovec *parts, int count);
int taskd_damage_copy(const struct taskd_damage *ring, unsigned capacity, uint64_t newest,
                      struct taskd_damage *out, unsigned max);

/* allocations.c */
void taskd_allocations_follow(bool on);

/* callers.c */
bool taskd_called_for_tensors(const void *return_address);

/* poison.c */
void taskd_poison_allocation(enum taskd_allocation kind, void *block, size_t size);
extern int taskd_poison_armed; /* the kind that taskd_poison_allocation waits for, 0 for none */

/* streams.c */
/* The inode of the socket `fd`, 0 if it is none. */
uint64_t taskd_socket_inode(int fd);
/* Connected, internet, stream, not listening. */
bool taskd_is_connection(int fd);
/* Call visit(fd, inode) for every open socket; stops at the first negative answer. Allocates
 * nothing. */
int taskd_each_socket(int (*visit)(int fd, uint64_t inode));

void taskd_streams_tear(void);
void taskd_streams_forget(bool (*is_covered)(int fd));
ssize_t taskd_streams_received(int fd, void *buffer, size_t length, ssize_t n);
ssize_t taskd_streams_sent(int fd, const struct iovec *parts, int count, ssize_t n);

/* sockets.c */
bool taskd_sockets_building(void);
bool taskd_sockets_idle(void);
bool taskd_sockets_cover(int fd);
void taskd_sockets_stop(void);
void taskd_sockets_child(void);

/* ports.c */
typedef int (*taskd_bind)(int, const struct sockaddr *, socklen_t);

/* Bind with `real`; in a rank, a TCP socket that asks for any port gets one of TASKD_PORT_RANGE, if
 * that is set. EADDRINUSE: all are taken. */
int taskd_ports_bind(int fd, const struct sockaddr *address, socklen_t length, taskd_bind real);

#endif
