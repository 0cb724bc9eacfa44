/* The sockets of this process: which are open, and which of them are connections. */
#include "internal.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

static int option(int fd, int name)
{
    int value = -1;
    socklen_t size = sizeof value;
    return getsockopt(fd, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
}

/* Sockets only: fstat on a file waits as long as the server of a network file system is gone. */
uint64_t taskd_socket_inode(int fd)
{
    struct stat st;
    return option(fd, SO_TYPE) >= 0 && fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode)
               ? (uint64_t)st.st_ino
               : 0;
}

/* Connected, internet, stream, not listening. */
bool taskd_is_connection(int fd)
{
    struct sockaddr_storage peer;
    socklen_t size = sizeof peer;
    int domain = option(fd, SO_DOMAIN);
    return (domain == AF_INET || domain == AF_INET6) && option(fd, SO_TYPE) == SOCK_STREAM &&
           option(fd, SO_ACCEPTCONN) == 0 && getpeername(fd, (struct sockaddr *)&peer, &size) == 0;
}

struct linux_dirent64 {
    uint64_t d_ino;
    int64_t d_off;
    unsigned short d_reclen;
    unsigned char d_type;
    char d_name[];
};

/* Call visit(fd, inode) for every open socket, until one returns < 0. opendir would allocate. */
int taskd_each_socket(int (*visit)(int fd, uint64_t inode))
{
    _Alignas(8) char buffer[8192];
    int dir = open("/proc/thread-self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return -errno;
    int rc = 0;
    long n;
    while (rc >= 0 && (n = syscall(SYS_getdents64, dir, buffer, sizeof buffer)) != 0) {
        if (n < 0) {
            rc = -errno;
            break;
        }
        for (long at = 0; rc >= 0 && at < n;) {
            const struct linux_dirent64 *entry = (const struct linux_dirent64 *)(buffer + at);
            at += entry->d_reclen;
            int fd = 0;
            const char *digit = entry->d_name;
            for (; *digit >= '0' && *digit <= '9'; digit++)
                fd = fd * 10 + (*digit - '0');
            if (*digit != '\0')
                continue;
            uint64_t inode = taskd_socket_inode(fd);
            if (inode != 0)
                rc = visit(fd, inode);
        }
    }
    close(dir);
    return rc;
}
