/* See the header. The state is read by taskd/adaptor/mindio/updates.py: a repair waits until an
 * update is done. */
#include "ttp_c_api.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT int taskd_optimizer_updates;

static void set(int updates)
{
    __atomic_store_n(&taskd_optimizer_updates, updates, __ATOMIC_SEQ_CST);
}

EXPORT int MindioTtpSetOptimStatusUpdating(int64_t backup_step)
{
    if (backup_step < -1)
        return 1;
    set(1);
    return 0;
}

EXPORT int MindioTtpSetOptimStatusFinished(int64_t step)
{
    if (step <= 0)
        return 1;
    set(0);
    return 0;
}
