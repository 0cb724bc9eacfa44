/* Runs when the dynamic linker loads libtaskd. Launchers get the same environment as the
 * interpreter that they will start, so only an interpreter claims the slot; other programs pass the
 * environment on unchanged. */
#include "internal.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

extern char **environ;

static bool is_ours(const char *entry, size_t length, const struct stat *ours)
{
    char path[PATH_MAX];
    const char *base = memrchr(entry, '/', length);
    base = base == NULL ? entry : base + 1;
    size_t base_length = length - (size_t)(base - entry);
    if (base_length == strlen("libtaskd.so") && memcmp(base, "libtaskd.so", base_length) == 0)
        return true;
    struct stat st;
    if (ours->st_ino == 0 || length >= sizeof path)
        return false;
    memcpy(path, entry, length);
    path[length] = '\0';
    return stat(path, &st) == 0 && st.st_dev == ours->st_dev && st.st_ino == ours->st_ino;
}

/* LD_PRELOAD without libtaskd, separators unchanged: other tools of the process (allocators,
 * profilers) are in it. */
static size_t without_ours(const char *list, char *out)
{
    struct stat ours = {.st_ino = 0};
    Dl_info info;
    if (dladdr((void *)(uintptr_t)taskd_real_resolve, &info) != 0 && info.dli_fname != NULL &&
        stat(info.dli_fname, &ours) != 0)
        ours.st_ino = 0;
    size_t used = 0;
    while (*list != '\0') {
        size_t gap = strspn(list, ": ");
        size_t length = strcspn(list + gap, ": ");
        if (length > 0 && !is_ours(list + gap, length, &ours)) {
            if (used > 0)
                out[used++] = gap > 0 ? *list : ':';
            memcpy(out + used, list + gap, length);
            used += length;
        }
        list += gap + length;
    }
    out[used] = '\0';
    return used;
}

/* Remove libtaskd from what children inherit. Only pointers in `environ` change: setenv would
 * allocate before main, and the strings may have another owner. */
static void hide_from_children(void)
{
    static char small[4096];
    static const char name[] = "LD_PRELOAD=";
    const size_t prefix = sizeof name - 1;
    char **to = environ;
    for (char **from = environ; *from != NULL; from++) {
        if (strncmp(*from, "TASKD_SLOT=", 11) == 0)
            continue;
        if (strncmp(*from, name, prefix) == 0) {
            size_t bytes = strlen(*from) + 1;
            char *copy = small;
            if (bytes > sizeof small) {
                copy =
                    mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                if (copy == MAP_FAILED)
                    continue;
            }
            memcpy(copy, name, prefix);
            if (without_ours(*from + prefix, copy + prefix) == 0)
                continue;
            *to++ = copy;
            continue;
        }
        *to++ = *from;
    }
    *to = NULL;
}

__attribute__((constructor)) static void loaded(void)
{
    taskd_real_resolve();
    const char *slot = getenv("TASKD_SLOT");
    const char *page = getenv("TASKD_PAGE");
    if (slot == NULL || page == NULL || !taskd_preloaded() ||
        dlsym(RTLD_DEFAULT, "Py_IsInitialized") == NULL)
        return;
    char *end;
    errno = 0;
    unsigned long index = strtoul(slot, &end, 10);
    bool valid =
        slot[0] >= '0' && slot[0] <= '9' && *end == '\0' && errno == 0 && index < UINT32_MAX;
    /* Before the claim, so that no child tries, even if the claim fails. */
    hide_from_children();
    if (valid)
        taskd_attach(page, (uint32_t)index);
    errno = 0;
}
