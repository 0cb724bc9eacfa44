/* Ports of TASKD_PORT_RANGE for a rank's listening sockets: the collective libraries ask for any
 * port, and a network policy has to name those that are used. */
#include "internal.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Parses "9700-9899". The agent has checked it; anything else means no range. */
static bool ports_range(unsigned *lowest, unsigned *highest)
{
    const char *text = getenv("TASKD_PORT_RANGE");
    char *end;
    while (text != NULL && *text == ' ')
        text++;
    if (text == NULL || text[0] < '1' || text[0] > '9')
        return false;
    unsigned long low = strtoul(text, &end, 10);
    if (*end != '-' || end[1] < '1' || end[1] > '9')
        return false;
    unsigned long high = strtoul(end + 1, &end, 10);
    while (*end == ' ')
        end++;
    if (*end != '\0' || low > high || high > 65535)
        return false;
    *lowest = (unsigned)low;
    *highest = (unsigned)high;
    return true;
}

/* Where an address has its port; NULL if it is not one of TCP's. */
static in_port_t *ports_of(int fd, struct sockaddr_storage *address, socklen_t length)
{
    int type = 0;
    socklen_t size = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM)
        return NULL;
    if (address->ss_family == AF_INET && length >= sizeof(struct sockaddr_in))
        return &((struct sockaddr_in *)address)->sin_port;
    if (address->ss_family == AF_INET6 && length >= sizeof(struct sockaddr_in6))
        return &((struct sockaddr_in6 *)address)->sin6_port;
    return NULL;
}

int taskd_ports_bind(int fd, const struct sockaddr *address, socklen_t length, taskd_bind real)
{
    static unsigned calls;
    unsigned lowest = 0, highest = 0;
    struct sockaddr_storage copy;
    if (address == NULL || length < sizeof(sa_family_t) || length > sizeof copy ||
        taskd_my_slot() == NULL || !ports_range(&lowest, &highest))
        return real(fd, address, length);
    memset(&copy, 0, sizeof copy);
    memcpy(&copy, address, length);
    in_port_t *port = ports_of(fd, &copy, length);
    if (port == NULL || *port != 0)
        return real(fd, address, length);
    /* With SO_REUSEADDR two sockets may be bound to a port until one of them listens, and the other
     * fails then. */
    int reuse = 0, off = 0;
    socklen_t size = sizeof reuse;
    if (getsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, &size) == 0 && reuse)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &off, sizeof off);
    unsigned count = highest - lowest + 1;
    unsigned first = (unsigned)getpid() * 31 + __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
    int result = -1;
    for (unsigned tried = 0; tried < count; tried++) {
        *port = htons((uint16_t)(lowest + (first + tried) % count));
        result = real(fd, (const struct sockaddr *)&copy, length);
        if (result == 0 || errno != EADDRINUSE)
            break;
    }
    int saved = errno;
    if (reuse)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse);
    errno = saved;
    return result;
}
