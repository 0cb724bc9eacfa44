/* See the header. The state is read by taskd/adaptor/mindio/updates.py: a repair waits until an
 * update is done. */
#include "ttp_c_api.h"

#define EXPORT __attribute__((visibility("default")))

static int updating;

EXPORT int MindioTtpSetOptimStatusUpdating(int64_t backup_step)
{
    (void)backup_step;
    __atomic_store_n(&updating, 1, __ATOMIC_SEQ_CST);
    return 0;
}

EXPORT int MindioTtpSetOptimStatusFinished(void)
{
    __atomic_store_n(&updating, 0, __ATOMIC_SEQ_CST);
    return 0;
}

EXPORT int taskd_optimizer_updates(void)
{
    return __atomic_load_n(&updating, __ATOMIC_SEQ_CST);
}
