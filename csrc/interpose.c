/* The libc functions that libtaskd interposes when preloaded, except those of allocations.c. Each
 * writes a record, uses the table of signals.c, contains lost memory (damage.c) or drops output
 * that nobody reads, and calls the real function; in a process without a slot, only the real
 * function.
 *
 * fork, vfork, exec and posix_spawn are not interposed: a C wrapper of vfork crashes the parent,
 * and libc's own callers would bypass a wrapper of execve. pthread_atfork and the environment keep
 * children out of the slot. */
#include "internal.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

static int (*real_sigaction)(int, const struct sigaction *, struct sigaction *);
static sighandler_t (*real_signal)(int, sighandler_t);
static void (*real_exit)(int);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_writev)(int, const struct iovec *, int);
static ssize_t (*real_recv)(int, void *, size_t, int);
static int (*real_getnameinfo)(const struct sockaddr *, socklen_t, char *, socklen_t, char *,
                               socklen_t, int);
static taskd_bind real_bind;
static void (*real_abort)(void);

void taskd_real_resolve(void)
{
    if (real_abort != NULL)
        return;
    *(void **)&real_sigaction = dlsym(RTLD_NEXT, "sigaction");
    *(void **)&real_signal = dlsym(RTLD_NEXT, "signal");
    *(void **)&real_exit = dlsym(RTLD_NEXT, "_exit");
    *(void **)&real_write = dlsym(RTLD_NEXT, "write");
    *(void **)&real_writev = dlsym(RTLD_NEXT, "writev");
    *(void **)&real_recv = dlsym(RTLD_NEXT, "recv");
    *(void **)&real_getnameinfo = dlsym(RTLD_NEXT, "getnameinfo");
    *(void **)&real_bind = dlsym(RTLD_NEXT, "bind");
    *(void **)&real_abort = dlsym(RTLD_NEXT, "abort");
}

/* The constructor resolves them, because dlsym takes a lock that may stay taken forever in a vfork
 * child. Another library's constructor may still run first. */
static void resolve_late(void)
{
    if (real_abort == NULL)
        taskd_real_resolve();
}

int taskd_real_sigaction(int sig, const struct sigaction *act, struct sigaction *old)
{
    resolve_late();
    if (real_sigaction == NULL) {
        errno = ENOSYS;
        return -1;
    }
    return real_sigaction(sig, act, old);
}

TASKD_EXPORT int sigaction(int sig, const struct sigaction *act, struct sigaction *old)
{
    return taskd_signals_virtual(sig, act, old) ? 0 : taskd_real_sigaction(sig, act, old);
}

TASKD_EXPORT sighandler_t signal(int sig, sighandler_t handler)
{
    struct sigaction act, old;
    memset(&act, 0, sizeof act);
    act.sa_handler = handler;
    act.sa_flags = SA_RESTART;
    if (handler != SIG_ERR && taskd_signals_virtual(sig, &act, &old))
        return old.sa_handler;
    resolve_late();
    if (real_signal == NULL) {
        errno = ENOSYS;
        return SIG_ERR;
    }
    return real_signal(sig, handler);
}

static ssize_t next_writev(int fd, const struct iovec *parts, int count)
{
    resolve_late();
    return real_writev != NULL ? real_writev(fd, parts, count)
                               : syscall(SYS_writev, fd, parts, count);
}

static ssize_t next_recv(int fd, void *buffer, size_t length, int flags)
{
    resolve_late();
    return real_recv != NULL ? real_recv(fd, buffer, length, flags)
                             : syscall(SYS_recvfrom, fd, buffer, length, flags, NULL, NULL);
}

/* For streams.c and damage.c: gloo writes with writev and reads with recv. A successful call costs
 * a few comparisons more. */
TASKD_EXPORT ssize_t writev(int fd, const struct iovec *parts, int count)
{
    ssize_t n = next_writev(fd, parts, count);
    if (n < 0 && errno == EFAULT && taskd_damage_touch(parts, count))
        n = next_writev(fd, parts, count);
    return taskd_streams_sent(fd, parts, count, n);
}

TASKD_EXPORT ssize_t recv(int fd, void *buffer, size_t length, int flags)
{
    ssize_t n = next_recv(fd, buffer, length, flags);
    if (n < 0 && errno == EFAULT &&
        taskd_damage_touch(&(struct iovec){.iov_base = buffer, .iov_len = length}, 1))
        n = next_recv(fd, buffer, length, flags);
    return flags & MSG_PEEK ? n : taskd_streams_received(fd, buffer, length, n);
}

/* torch looks up the name of every address that it connects to, for its log, and a slow or dead
 * name server delays each rebuild of the communicators by its time-out, 5 s. While a communicator
 * is built, the numeric address is returned. */
TASKD_EXPORT int getnameinfo(const struct sockaddr *address, socklen_t length, char *host,
                             socklen_t host_length, char *service, socklen_t service_length,
                             int flags)
{
    resolve_late();
    if (real_getnameinfo == NULL)
        return EAI_FAIL;
    if (!(flags & NI_NAMEREQD) && taskd_my_slot() != NULL && taskd_sockets_building())
        flags |= NI_NUMERICHOST;
    return real_getnameinfo(address, length, host, host_length, service, service_length, flags);
}

static int next_bind(int fd, const struct sockaddr *address, socklen_t length)
{
    resolve_late();
    return real_bind != NULL ? real_bind(fd, address, length)
                             : (int)syscall(SYS_bind, fd, address, length);
}

TASKD_EXPORT int bind(int fd, __CONST_SOCKADDR_ARG address, socklen_t length)
{
    return taskd_ports_bind(fd, address.__sockaddr__, length, next_bind);
}

/* What a rank prints into a pipe whose reader is gone, as in `... | tee`, is dropped from then on:
 * EPIPE would end the program before the job's state is saved. */
TASKD_EXPORT ssize_t write(int fd, const void *data, size_t length)
{
    resolve_late();
    ssize_t done = real_write != NULL ? real_write(fd, data, length)
                                      : syscall(SYS_write, fd, data, length);
    if (done >= 0 || errno != EPIPE || (fd != STDOUT_FILENO && fd != STDERR_FILENO) ||
        taskd_my_slot() == NULL)
        return done;
    int nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (nothing >= 0 && dup2(nothing, fd) == fd)
        done = (ssize_t)length;
    else
        errno = EPIPE;
    if (nothing >= 0)
        syscall(SYS_close, nothing);
    return done;
}

static _Noreturn void leave(int status)
{
    taskd_record(TASKD_RECORD_EXIT, 0, status, 0, (uint64_t)(uintptr_t)__builtin_return_address(0));
    if (real_exit != NULL)
        real_exit(status);
    for (;;)
        syscall(SYS_exit_group, status);
}

TASKD_EXPORT _Noreturn void _exit(int status)
{
    leave(status);
}

TASKD_EXPORT _Noreturn void _Exit(int status)
{
    leave(status);
}

TASKD_EXPORT _Noreturn void abort(void)
{
    taskd_record(TASKD_RECORD_ABORT, SIGABRT, 0, 0,
                 (uint64_t)(uintptr_t)__builtin_return_address(0));
    if (taskd_own_slot() != NULL)
        __atomic_store_n(&taskd_self.aborting, taskd_tid(), __ATOMIC_RELAXED);
    resolve_late();
    if (real_abort != NULL)
        real_abort();
    for (;;)
        __builtin_trap();
}

int taskd_preloaded(void)
{
    /* Preloaded means: libtaskd's symbols are global, and the program's _exit is not the one after
     * libtaskd's. It need not be libtaskd's: another preloaded library may come first. */
    void *first = dlsym(RTLD_DEFAULT, "_exit");
    return dlsym(RTLD_DEFAULT, "taskd_abi") != NULL && first != NULL &&
           first != dlsym(RTLD_NEXT, "_exit");
}
