/* What MindSpore calls from its device code: it loads this library from mindio_ttp's folder, as
 * mindspore_api/libttp_c_api.so. */
#ifndef TASKD_TTP_C_API_H
#define TASKD_TTP_C_API_H

#include <stdint.h>

/* The optimizer is about to write parameters. `backup_step` is not used. Returns 0. From any
 * thread; async-signal-safe. */
int MindioTtpSetOptimStatusUpdating(int64_t backup_step);
/* It has written them. Returns 0. Likewise. */
int MindioTtpSetOptimStatusFinished(void);
/* Whether it is writing: 1 or 0. Likewise. */
int taskd_optimizer_updates(void);

#endif
