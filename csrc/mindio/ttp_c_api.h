/* What MindSpore calls from its device code: it loads this library from mindio_ttp's folder, as
 * mindspore_api/libttp_c_api.so. */
#ifndef TASKD_TTP_C_API_H
#define TASKD_TTP_C_API_H

#include <stdint.h>

/* The optimizer is about to write parameters. `backup_step`: -1, or a step; not used. Returns 0, or
 * 1 for any other number, without effect. From any thread; async-signal-safe. */
int MindioTtpSetOptimStatusUpdating(int64_t backup_step);
/* It has written those of update `step`, 1 or more. Likewise. */
int MindioTtpSetOptimStatusFinished(int64_t step);
/* Whether it is writing: 1 or 0. Loaded and stored atomically. */
extern int taskd_optimizer_updates;

#endif
