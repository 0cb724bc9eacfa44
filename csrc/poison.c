/* Injects memory errors. The kernel marks a page of this process as lost (userfaultfd's
 * UFFDIO_POISON, made for migrating virtual machines with damaged memory); the rest is as with a
 * real error. */
#include "internal.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#ifndef UFFD_USER_MODE_ONLY /* headers before Linux 5.11 */
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef UFFDIO_POISON /* headers before Linux 6.6 */
#define UFFD_FEATURE_POISON (1 << 14)
struct uffdio_poison {
    struct uffdio_range range;
    __u64 mode;
    __s64 updated;
};
#define UFFDIO_POISON _IOWR(UFFDIO, 0x08, struct uffdio_poison)
#endif

int taskd_poison_armed;
static uint64_t poisoned;

static int poison_page(int fd, void *page, size_t bytes)
{
    struct uffdio_range range = {.start = (uint64_t)(uintptr_t)page, .len = bytes};
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_POISON};
    struct uffdio_register watch = {.range = range, .mode = UFFDIO_REGISTER_MODE_MISSING};
    struct uffdio_poison poison = {.range = range};
    if (ioctl(fd, UFFDIO_API, &api) != 0)
        return errno == EINVAL ? -EOPNOTSUPP : -errno;
    if (ioctl(fd, UFFDIO_REGISTER, &watch) != 0)
        return -errno;
    /* The mark can be set only once the page has left this mapping. A thread that touches it in
     * between waits for the mark, because the range is watched. A file keeps its content: with a
     * real fault other processes that map it would be hit too, and none would read zeros. */
    if (madvise(page, bytes, MADV_DONTNEED) != 0 || ioctl(fd, UFFDIO_POISON, &poison) != 0)
        return -errno;
    return 0;
}

int taskd_poison(void *address)
{
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    /* The kernel's own accesses must fail, not wait for a reader of this descriptor. */
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    if (fd < 0)
        return errno == EINVAL ? -EOPNOTSUPP : -errno;
    int rc = poison_page(fd, (void *)((uintptr_t)address & ~(uintptr_t)(bytes - 1)), bytes);
    close(fd);
    return rc;
}

int taskd_poison_next(int kind)
{
    if (kind != 0 && kind != TASKD_ALLOCATION_TENSOR && kind != TASKD_ALLOCATION_GLOO)
        return -EINVAL;
    __atomic_store_n(&taskd_poison_armed, kind, __ATOMIC_RELEASE);
    return 0;
}

uint64_t taskd_poisoned(void)
{
    return __atomic_load_n(&poisoned, __ATOMIC_ACQUIRE);
}

void taskd_poison_allocation(enum taskd_allocation kind, void *block, size_t size)
{
    uintptr_t bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t page = ((uintptr_t)block + bytes - 1) & ~(bytes - 1);
    int armed = (int)kind;
    if (page + bytes > (uintptr_t)block + size ||
        !__atomic_compare_exchange_n(&taskd_poison_armed, &armed, 0, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
        return;
    int saved = errno;
    if (taskd_poison((void *)page) == 0)
        __atomic_add_fetch(&poisoned, 1, __ATOMIC_ACQ_REL);
    errno = saved;
}
