/* Gets a rank out of a collective that a peer will never join, by shutting its connections down.
 *
 * No signal or asynchronous exception reaches a thread inside a C++ collective, and Python cannot
 * run while another thread holds the GIL. So a C thread sleeps on the slot's interruption word and,
 * on an interruption newer than the communicator, shuts its sockets down; the library then sees its
 * peers gone and raises. Closing a socket, or shutting down a listening one, makes gloo abort. */
#include "internal.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#define MAX_FDS 65536
#define THREAD_STACK (512u * 1024u) /* includes static TLS, large in big programs */

enum mode {
    IDLE,     /* nothing is covered */
    BUILDING, /* between begin and end: every socket that is not in `before` */
    FIXED,    /* after end: the sockets in `list` */
};

static struct {
    pthread_mutex_t lock;
    pthread_t thread;
    bool running;
    enum mode mode;
    uint32_t built_at;
    uint32_t round;  /* counts begins */
    uint32_t served; /* the round for which the thread is scanning */
    bool stop, stopped;
    uint32_t limit_ms; /* for TCP_USER_TIMEOUT; 0: connections stay as they are */
    int before_top;
    int count;
} cover = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Descriptor numbers are reused; the inode tells whether a number still means the same socket.
 * Static, because nothing may be allocated during a fault; untouched pages cost nothing. */
static uint64_t before[MAX_FDS];
static struct {
    int fd;
    uint64_t inode;
} list[MAX_FDS];

static int remember(int fd, uint64_t inode)
{
    if (fd >= MAX_FDS)
        return 0; /* end reports it if it is still open */
    before[fd] = inode;
    if (fd >= cover.before_top)
        cover.before_top = fd + 1;
    return 0;
}

static bool is_new(int fd, uint64_t inode)
{
    return fd >= MAX_FDS || before[fd] != inode;
}

static int collect(int fd, uint64_t inode)
{
    if (!is_new(fd, inode) || !taskd_is_connection(fd))
        return 0;
    if (fd >= MAX_FDS)
        return -EMFILE;
    list[cover.count].fd = fd;
    list[cover.count].inode = inode;
    cover.count++;
    return 0;
}

static int cut_total;

static void cut_one(int fd)
{
    /* Between check and call another thread could reuse this descriptor: a window of microseconds,
     * and no thread tears a communicator down while it is in use. */
    if (taskd_is_connection(fd) && shutdown(fd, SHUT_RDWR) == 0)
        cut_total++;
}

static int cut_new(int fd, uint64_t inode)
{
    if (is_new(fd, inode))
        cut_one(fd);
    return 0;
}

/* With the lock held. A connection already shut down is no longer connected, so it counts once. */
static int cut_covered(void)
{
    cut_total = 0;
    if (cover.mode == BUILDING)
        taskd_each_socket(cut_new);
    else if (cover.mode == FIXED)
        for (int i = 0; i < cover.count; i++)
            if (taskd_socket_inode(list[i].fd) == list[i].inode)
                cut_one(list[i].fd);
    return cut_total;
}

static bool interruption_is_newer(void)
{
    return taskd_interruption() > cover.built_at;
}

/* Connections of a communicator built under an already newer interruption appear one by one and
 * each must be cut, so the thread scans every millisecond until end, clear, the next begin or
 * detach; the builder has its own time-out. A scan costs ~1 us per open descriptor; after a second
 * scans become rarer, in case that time-out is long. */
static long pause_between_looks(unsigned looks)
{
    return looks < 1000 ? 1000 : looks < 5000 ? 10000 : 100000;
}

static void *interrupter(void *argument)
{
    struct taskd_slot *slot = argument;
    unsigned looks = 0;
    prctl(PR_SET_NAME, "taskd-cut");
    for (;;) {
        uint32_t interruption = __atomic_load_n(&slot->interruption, __ATOMIC_SEQ_CST);
        pthread_mutex_lock(&cover.lock);
        if (cover.stop) {
            pthread_mutex_unlock(&cover.lock);
            break;
        }
        bool due = cover.mode != IDLE && interruption > cover.built_at;
        bool again = due && cover.mode == BUILDING;
        if (again && cover.served != cover.round) {
            looks = 0;
            __atomic_store_n(&cover.served, cover.round, __ATOMIC_RELEASE);
        }
        if (due)
            cut_covered();
        pthread_mutex_unlock(&cover.lock);
        if (again)
            taskd_sleep_us(pause_between_looks(looks++));
        else
            taskd_wait(&slot->interruption, interruption, UINT64_MAX);
    }
    __atomic_store_n(&cover.stopped, true, __ATOMIC_RELEASE);
    return NULL;
}

/* With the lock held. */
static int start_thread(struct taskd_slot *slot)
{
    if (cover.running)
        return 0;
    pthread_attr_t attr;
    int rc = pthread_attr_init(&attr);
    if (rc != 0)
        return -rc;
    pthread_attr_setstacksize(&attr, THREAD_STACK);
    /* Leave the program's signals to its own threads. */
    sigset_t all, saved;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &saved);
    cover.stop = cover.stopped = false;
    rc = pthread_create(&cover.thread, &attr, interrupter, slot);
    pthread_sigmask(SIG_SETMASK, &saved, NULL);
    pthread_attr_destroy(&attr);
    cover.running = rc == 0;
    return -rc;
}

/* Or there is nothing left to serve: another thread has called end or clear. */
static bool serving_this_round(void)
{
    return __atomic_load_n(&cover.served, __ATOMIC_ACQUIRE) ==
               __atomic_load_n(&cover.round, __ATOMIC_ACQUIRE) ||
           __atomic_load_n(&cover.mode, __ATOMIC_ACQUIRE) != BUILDING;
}

static bool thread_stopped(void)
{
    return __atomic_load_n(&cover.stopped, __ATOMIC_ACQUIRE);
}

/* Only the agent changes the word that the thread sleeps on, so a wake from here can fall between
 * its last look and its sleep: knock until it answers (callers are rare). Others that sleep on the
 * word look and sleep on. */
static void knock_until(bool (*answered)(void), uint32_t *word)
{
    while (!answered()) {
        taskd_wake(word);
        taskd_sleep_us(20);
    }
}

/* With the lock held. */
static int remember_all(void)
{
    memset(before, 0, (size_t)cover.before_top * sizeof before[0]);
    cover.before_top = 0;
    return taskd_each_socket(remember);
}

/* With the lock held. */
static void build(void)
{
    cover.count = 0;
    cover.mode = BUILDING;
    __atomic_store_n(&cover.round, cover.round + 1, __ATOMIC_RELEASE);
}

int taskd_sockets_begin(uint32_t built_at)
{
    struct taskd_slot *slot = taskd_my_slot();
    if (slot == NULL)
        return -ENOTCONN;
    pthread_mutex_lock(&cover.lock);
    taskd_streams_begin();
    cover.mode = IDLE;
    cover.built_at = built_at;
    int rc = remember_all();
    if (rc >= 0)
        rc = start_thread(slot);
    if (rc >= 0)
        build();
    bool late = rc >= 0 && interruption_is_newer();
    pthread_mutex_unlock(&cover.lock);
    if (late)
        knock_until(serving_this_round, &slot->interruption);
    return rc < 0 ? rc : 0;
}

static bool in_list(int fd)
{
    for (int i = 0; i < cover.count; i++)
        if (list[i].fd == fd)
            return true;
    return false;
}

int taskd_sockets_extend(void)
{
    struct taskd_slot *slot = taskd_my_slot();
    if (slot == NULL)
        return 0;
    pthread_mutex_lock(&cover.lock);
    int rc = 0;
    if (cover.mode == FIXED) {
        taskd_streams_forget(in_list);
        rc = remember_all();
        for (int i = 0; rc >= 0 && i < cover.count; i++)
            before[list[i].fd] = 0;
        if (rc >= 0) {
            build();
            rc = 1;
        }
    }
    bool late = rc == 1 && interruption_is_newer();
    pthread_mutex_unlock(&cover.lock);
    if (late)
        knock_until(serving_this_round, &slot->interruption);
    return rc;
}

/* With the lock held. */
static void limit_covered(void)
{
    int limit = (int)cover.limit_ms;
    for (int i = 0; limit != 0 && i < cover.count; i++)
        setsockopt(list[i].fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof limit);
}

int taskd_sockets_end(void)
{
    if (taskd_my_slot() == NULL)
        return -ENOTCONN;
    pthread_mutex_lock(&cover.lock);
    int rc = -EINVAL;
    if (cover.mode == BUILDING) {
        rc = taskd_each_socket(collect);
        if (rc >= 0) {
            cover.mode = FIXED;
            rc = cover.count;
            limit_covered();
            if (interruption_is_newer())
                cut_covered();
        } else {
            cover.mode = IDLE;
            cover.count = 0;
        }
    }
    pthread_mutex_unlock(&cover.lock);
    return rc;
}

int taskd_sockets_clear(void)
{
    pthread_mutex_lock(&cover.lock);
    cover.mode = IDLE;
    cover.count = 0;
    pthread_mutex_unlock(&cover.lock);
    return 0;
}

int taskd_sockets_cut(void)
{
    pthread_mutex_lock(&cover.lock);
    int cut = cut_covered();
    pthread_mutex_unlock(&cover.lock);
    return cut;
}

int taskd_sockets_list(int *fds, int max)
{
    if (max < 0 || (fds == NULL && max > 0))
        return -EINVAL;
    int n = 0;
    pthread_mutex_lock(&cover.lock);
    if (cover.mode == FIXED)
        for (int i = 0; i < cover.count && n < max; i++)
            if (taskd_socket_inode(list[i].fd) == list[i].inode)
                fds[n++] = list[i].fd;
    pthread_mutex_unlock(&cover.lock);
    return n;
}

int taskd_sockets_limit(uint32_t milliseconds)
{
    if (milliseconds > INT_MAX)
        return -EINVAL;
    pthread_mutex_lock(&cover.lock);
    cover.limit_ms = milliseconds;
    pthread_mutex_unlock(&cover.lock);
    return 0;
}

bool taskd_sockets_building(void)
{
    return __atomic_load_n(&cover.mode, __ATOMIC_ACQUIRE) == BUILDING;
}

bool taskd_sockets_idle(void)
{
    return __atomic_load_n(&cover.mode, __ATOMIC_ACQUIRE) == IDLE;
}

bool taskd_sockets_cover(int fd)
{
    bool covered = false;
    uint64_t inode = taskd_socket_inode(fd);
    pthread_mutex_lock(&cover.lock);
    if (inode != 0 && cover.mode == BUILDING)
        covered = is_new(fd, inode);
    else if (inode != 0 && cover.mode == FIXED)
        for (int i = 0; i < cover.count && !covered; i++)
            covered = list[i].fd == fd && list[i].inode == inode;
    pthread_mutex_unlock(&cover.lock);
    return covered;
}

void taskd_sockets_stop(void)
{
    struct taskd_slot *slot = taskd_my_slot();
    pthread_mutex_lock(&cover.lock);
    cover.mode = IDLE;
    cover.count = 0;
    cover.stop = true;
    bool running = cover.running;
    cover.running = false;
    pthread_mutex_unlock(&cover.lock);
    if (!running)
        return;
    knock_until(thread_stopped, &slot->interruption);
    pthread_join(cover.thread, NULL);
}

void taskd_sockets_child(void)
{
    /* Neither the thread nor the lock's holder exists here; the parent's connections must stay. */
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    cover.lock = fresh;
    cover.mode = IDLE;
    cover.count = 0;
    cover.running = cover.stop = cover.stopped = false;
}
