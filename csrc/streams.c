/* Ends gloo's waits (torch 2.13 and before) for messages of broken connections that gloo forgets.
 *
 * When a connection ends, gloo fails the operations in its pending lists. Two are in none of them:
 * a message being received, between its header and its last byte, and one being sent when the write
 * itself fails or has to wait. Their waiters stay until the group's time-out, half an hour by
 * default: this kept survivors in their collective after a peer's death or a cut. (Seen with a
 * debugger in waitRecv and waitSend on closed connections; docs/design.md.)
 *
 * So the message is completed: missing bytes are read as zeros, bytes that cannot be written are
 * dropped, as if the connection had broken a moment later. gloo's next read then sees the end of
 * the connection and fails everything else. The collective's result may be wrong, so the process is
 * marked as torn and does not commit the step.
 *
 * Reading requires knowing where messages begin. gloo's loop thread reads headers of 48 bytes,
 * whose first two words are the length of header and payload, and the operation; bytes are counted
 * from the connection's first header on. A stream in any other format is left alone.
 *
 * Where a framework makes its own groups (taskd/adaptor/mindio), nothing is covered by sockets.c.
 * There a write is gloo's if gloo's loop does it, if it begins with such a header, or if the same
 * thread has just written a part of that message. */
#include "internal.h"

#include <string.h>
#include <sys/prctl.h>

#define MAX_FDS 65536
#define HEADER 48u
/* send to a buffer, send to an unbound buffer, two notifications; the first two carry a payload */
#define LAST_OPERATION 3u
#define CARRIES_PAYLOAD(operation) ((operation) <= 1u)

/* Written by gloo's single loop thread; `round` detects a reused descriptor number. */
static struct stream {
    uint32_t round;
    uint32_t header_bytes; /* of the header being read */
    uint64_t words[2];
    uint64_t payload_left;
    bool unknown; /* not gloo's format */
} streams[MAX_FDS];

static uint32_t current_round = 1;
static uint32_t torn;

TASKD_EXPORT void taskd_streams_begin(void)
{
    __atomic_add_fetch(&current_round, 1, __ATOMIC_ACQ_REL);
    __atomic_store_n(&torn, 0, __ATOMIC_RELEASE);
}

/* Descriptors that another connection may get have no message under way. */
void taskd_streams_forget(bool (*is_covered)(int fd))
{
    for (int fd = 0; fd < MAX_FDS; fd++)
        if (streams[fd].round != 0 && !is_covered(fd))
            streams[fd].round = 0;
}

void taskd_streams_tear(void)
{
    __atomic_store_n(&torn, 1, __ATOMIC_RELEASE);
}

TASKD_EXPORT int taskd_torn(void)
{
    return (int)__atomic_load_n(&torn, __ATOMIC_ACQUIRE);
}

static bool in_gloo_loop(void)
{
    static _Thread_local signed char known; /* 0: not checked yet */
    if (known == 0) {
        char name[16] = "";
        prctl(PR_GET_NAME, name);
        known = strcmp(name, "gloo_tcp_loop") == 0 ? 1 : -1;
    }
    return known > 0;
}

static struct stream *stream_of(int fd)
{
    if (fd < 0 || fd >= MAX_FDS)
        return NULL;
    struct stream *s = &streams[fd];
    uint32_t round = __atomic_load_n(&current_round, __ATOMIC_ACQUIRE);
    if (s->round != round)
        *s = (struct stream){.round = round};
    return s;
}

static void count(struct stream *s, const char *bytes, size_t n)
{
    while (n > 0 && !s->unknown) {
        if (s->payload_left > 0) {
            uint64_t part = n < s->payload_left ? n : s->payload_left;
            s->payload_left -= part;
            bytes += part;
            n -= part;
            continue;
        }
        size_t part = HEADER - s->header_bytes < n ? HEADER - s->header_bytes : n;
        for (size_t i = 0; i < part && s->header_bytes + i < sizeof s->words; i++)
            ((char *)s->words)[s->header_bytes + i] = bytes[i];
        s->header_bytes += (uint32_t)part;
        bytes += part;
        n -= part;
        if (s->header_bytes == HEADER) {
            s->header_bytes = 0;
            s->unknown = s->words[0] < HEADER || s->words[1] > LAST_OPERATION;
            s->payload_left =
                !s->unknown && CARRIES_PAYLOAD(s->words[1]) ? s->words[0] - HEADER : 0;
        }
    }
}

/* Called after a recv that returned n; returns the caller's result. */
ssize_t taskd_streams_received(int fd, void *buffer, size_t length, ssize_t n)
{
    struct stream *s;
    if (taskd_my_slot() == NULL || !in_gloo_loop() || (s = stream_of(fd)) == NULL)
        return n;
    if (n > 0) {
        count(s, buffer, (size_t)n);
        return n;
    }
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return n;
    if (s->unknown || s->payload_left == 0 || length > s->payload_left)
        return n;
    taskd_streams_tear();
    memset(buffer, 0, length);
    s->payload_left -= length;
    return (ssize_t)length;
}

/* gloo writes a message in one call, which may end early: header and payload, if it has one. */
static bool begins_message(const struct iovec *parts, int count, size_t length)
{
    uint64_t words[2];
    if (count < 1 || count > 2 || parts[0].iov_len != HEADER)
        return false;
    memcpy(words, parts[0].iov_base, sizeof words);
    return words[0] == length && words[1] <= LAST_OPERATION;
}

/* Called after a writev that returned n; returns the caller's result. */
ssize_t taskd_streams_sent(int fd, const struct iovec *parts, int count, ssize_t n)
{
    static _Thread_local int unfinished = -1; /* where this thread has written part of a message */
    bool broken = n < 0 && (errno == EPIPE || errno == ECONNRESET);
    if (taskd_my_slot() == NULL || (n < 0 && !broken))
        return n;
    size_t length = 0;
    for (int i = 0; i < count; i++)
        length += parts[i].iov_len;
    bool idle = taskd_sockets_idle();
    bool gloos =
        idle && (unfinished == fd || in_gloo_loop() || begins_message(parts, count, length));
    if (broken && (gloos || taskd_sockets_cover(fd))) {
        taskd_streams_tear();
        n = (ssize_t)length;
    }
    unfinished = gloos && n >= 0 && (size_t)n < length ? fd : -1;
    return n;
}
