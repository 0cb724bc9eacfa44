/* Claims and releases a slot, and ensures that no child of this process writes to it. */
#include "internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

struct taskd_self taskd_self;

/* The agent's watcher and its reset hold `alive` for microseconds, but a cgroup that has used up
 * its share of the processor stops them for 100 ms and more. Another process does not go away. */
#define CLAIM_MS 5000

static uint32_t number_from(const char *name, uint32_t otherwise)
{
    const char *text = getenv(name);
    if (text == NULL || text[0] < '0' || text[0] > '9')
        return otherwise;
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    /* Operators may set lists such as "0,1,2,3". */
    return errno == 0 && *end == '\0' && value < UINT32_MAX ? (uint32_t)value : otherwise;
}

static int page_map(const char *path, struct taskd_page **out)
{
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int rc = 0;
    struct taskd_page *page = MAP_FAILED;
    struct stat st;
    if (fstat(fd, &st) != 0)
        rc = -errno;
    else if (!S_ISREG(st.st_mode) || (size_t)st.st_size < taskd_page_bytes(1))
        rc = -EPROTO;
    else if ((page = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) ==
             MAP_FAILED)
        rc = -errno;
    close(fd);
    if (rc < 0)
        return rc;
    if (__atomic_load_n(&page->magic, __ATOMIC_ACQUIRE) != TASKD_MAGIC || page->abi != TASKD_ABI ||
        page->slot_bytes != sizeof(struct taskd_slot) ||
        taskd_page_bytes(page->nslots) > (size_t)st.st_size) {
        munmap(page, (size_t)st.st_size);
        return -EPROTO;
    }
    *out = page;
    return 0;
}

/* A forked child has one thread, and a thread that does not exist may hold any lock: only plain
 * stores and sigaction. The mapping stays, but the child drops its pointer. `alive` is the
 * parent's, and libc has emptied the child's robust list. */
static void forked(void)
{
    if (taskd_self.slot == NULL)
        return;
    __atomic_store_n(&taskd_self.slot, NULL, __ATOMIC_RELEASE);
    taskd_self.page = NULL;
    taskd_signals_child();
    taskd_sockets_child();
    taskd_damage_child();
    taskd_allocations_follow(false);
}

static int claim(struct taskd_slot *slot)
{
    int rc = taskd_alive_lock(&slot->alive, CLAIM_MS);
    if (rc == -ETIMEDOUT)
        return -EBUSY;
    if (rc < 0)
        return rc;
    slot->pid = (int32_t)getpid();
    slot->rank = number_from("RANK", TASKD_NO_RANK);
    slot->incarnation = number_from("TASKD_INCARNATION", 0);
    __atomic_store_n(&slot->started, 0, __ATOMIC_RELEASE);
    taskd_publish_first(slot);
    taskd_damage_begin(slot);
    __atomic_store_n(&slot->attached, 1, __ATOMIC_RELEASE);
    return 0;
}

int taskd_attach(const char *path, uint32_t index)
{
    static bool watching_forks;
    if (path == NULL || strlen(path) >= sizeof taskd_self.path)
        return -EINVAL;
    if (taskd_my_slot() != NULL)
        return index == taskd_self.index && strcmp(path, taskd_self.path) == 0 ? 0 : -EALREADY;
    /* The kernel reports the death of the thread that holds `alive`; only the main thread lives as
     * long as the process. */
    if (taskd_tid() != (int32_t)getpid())
        return -EPERM;
    taskd_real_resolve();

    struct taskd_page *page = NULL;
    int rc = page_map(path, &page);
    if (rc < 0)
        return rc;
    struct taskd_slot *slot = &page->slots[index];
    if (index >= page->nslots)
        rc = -EINVAL;
    else if (!watching_forks && (rc = -pthread_atfork(NULL, NULL, forked)) == 0)
        watching_forks = true;
    if (rc == 0)
        rc = claim(slot);
    if (rc < 0) {
        munmap(page, taskd_page_bytes(page->nslots));
        return rc;
    }

    taskd_self.page = page;
    taskd_self.index = index;
    taskd_self.pid = (int32_t)getpid();
    taskd_self.aborting = 0;
    taskd_self.records = 0;
    for (int i = 0; i < TASKD_RECORDS; i++)
        if (slot->records[i].order > taskd_self.records)
            taskd_self.records = slot->records[i].order;
    strcpy(taskd_self.path, path);
    __atomic_store_n(&taskd_self.slot, slot, __ATOMIC_RELEASE);
    taskd_signals_install();
    taskd_allocations_follow(true);
    return 0;
}

int taskd_detach(void)
{
    struct taskd_slot *slot = taskd_my_slot();
    if (slot == NULL)
        return -ENOTCONN;
    if (taskd_tid() != taskd_self.pid)
        return -EPERM;
    taskd_sockets_stop();
    taskd_allocations_follow(false);
    taskd_signals_restore();
    __atomic_store_n(&taskd_self.slot, NULL, __ATOMIC_RELEASE);
    __atomic_store_n(&slot->attached, 0, __ATOMIC_RELEASE);
    int rc = pthread_mutex_unlock(&slot->alive);
    return -rc;
}

int taskd_slot_number(void)
{
    return taskd_my_slot() == NULL ? -ENOTCONN : (int)taskd_self.index;
}
