/* Records why this process ends, in its slot, by the thread that ends it. Async-signal-safe. */
#include "internal.h"

void taskd_record(enum taskd_record_kind kind, int sig, int code, uint64_t addr, uint64_t ip)
{
    struct taskd_slot *slot = taskd_own_slot();
    if (slot == NULL)
        return;
    /* The newest are kept: a program that survives signals must not fill the slot with them. */
    uint64_t order = __atomic_add_fetch(&taskd_self.records, 1, __ATOMIC_RELAXED);
    struct taskd_record *r = &slot->records[(order - 1) % TASKD_RECORDS];
    __atomic_store_n(&r->kind, TASKD_RECORD_NONE, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    r->sig = sig;
    r->code = code;
    r->pid = taskd_self.pid;
    r->tid = taskd_tid();
    r->phase = __atomic_load_n(&slot->phase, __ATOMIC_RELAXED);
    r->step = __atomic_load_n(&slot->step, __ATOMIC_RELAXED);
    r->addr = addr;
    r->ip = ip;
    r->mono_ns = taskd_now();
    r->order = order;
    __atomic_store_n(&r->kind, (uint32_t)kind, __ATOMIC_RELEASE);
}
