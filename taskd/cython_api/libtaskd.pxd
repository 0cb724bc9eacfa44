# Declarations from csrc/libtaskd.h, which has the contracts.

from libc.stdint cimport int32_t, uint32_t, uint64_t


cdef extern from "libtaskd.h" nogil:
    enum:
        TASKD_RECORDS
        TASKD_SETUP
        TASKD_COMPUTING
        TASKD_UPDATING
        TASKD_COMMITTED
        TASKD_INTERRUPTED
        TASKD_DONE
        TASKD_PAUSED
        TASKD_FETCHING
        TASKD_LEFT
        TASKD_QUIT
        TASKD_DAMAGES
        TASKD_DAMAGES_LISTED
        TASKD_TIMES
        TASKD_GROUPS
        TASKD_DAMAGE_REGISTERED
        TASKD_DAMAGE_ALLOCATED
        TASKD_MEMORY_TENSORS
        TASKD_MEMORY_SHARED
        TASKD_ALLOCATION_TENSOR
        TASKD_ALLOCATION_GLOO
        TASKD_RECORD_SIGNAL
        TASKD_RECORD_EXIT
        TASKD_RECORD_ABORT
    uint64_t TASKD_ALL_DONE
    uint32_t TASKD_NO_RANK
    uint64_t TASKD_NO_PAUSE
    uint64_t TASKD_SCRATCH

    struct taskd_page:
        uint32_t nslots

    struct taskd_record:
        uint32_t kind
        int32_t sig, code, pid, tid
        uint32_t phase
        uint64_t step, addr, ip, mono_ns, order

    struct taskd_damage:
        uint64_t addr, bytes, base, size, born, mono_ns
        uint32_t kind
        int32_t tid
        uint64_t number

    struct taskd_view:
        uint32_t rank, phase, incarnation, interruption
        int32_t pid
        uint32_t attached
        uint64_t step, heartbeat_ns, started, usual_ns, until_ns, damaged, came_ns, waited_ns
        int32_t asked
        uint32_t handles


    struct taskd_count:
        uint64_t group, begun

    int taskd_page_create(const char *path, uint32_t nslots, taskd_page **page)
    int taskd_page_unmap(taskd_page *page)
    int taskd_slot_reset(taskd_page *page, uint32_t slot)
    int taskd_page_interrupt(taskd_page *page, uint32_t slot, uint32_t number)
    int taskd_page_pause(taskd_page *page, uint64_t step)
    uint32_t taskd_page_bell(const taskd_page *page)
    int taskd_page_wait_bell(taskd_page *page, uint32_t seen, int timeout_ms)
    int taskd_read(const taskd_page *page, uint32_t slot, taskd_view *view)
    int taskd_records(const taskd_page *page, uint32_t slot, taskd_record *out)
    int taskd_damages(const taskd_page *page, uint32_t slot, taskd_damage *out)
    int taskd_times(const taskd_page *page, uint32_t slot, uint32_t *out)
    int taskd_wait_death(taskd_page *page, uint32_t slot, int timeout_ms)
    int taskd_attach(const char *path, uint32_t slot)
    int taskd_detach()
    int taskd_slot_number()
    int taskd_preloaded()
    int taskd_progress(uint64_t step, uint32_t phase)
    int taskd_waited(uint64_t ns)
    int taskd_patience(uint64_t seconds)
    uint64_t taskd_pause_step()
    int taskd_started(uint64_t step)
    int taskd_counted(uint64_t step, uint32_t built_at, const taskd_count *counts, uint32_t n)
    int taskd_marked(uint64_t step, uint32_t generation, const taskd_count *counts, uint32_t n)
    int taskd_marks(
        const taskd_page *page, uint32_t slot, uint64_t *step, uint32_t *generation,
        taskd_count *out)
    int taskd_uneven(uint64_t step, uint32_t built_at, uint64_t *group)
    int taskd_count_of(
        uint32_t slot, uint64_t step, uint32_t built_at, uint64_t group, uint64_t *begun)
    int taskd_together(uint64_t step, uint32_t built_at, int timeout_ms)
    int taskd_wait_started(uint64_t step, uint32_t built_at, int timeout_ms)
    int taskd_wait_copied(uint64_t number, uint32_t built_at, int timeout_ms)
    int taskd_copying()
    int taskd_page_ending(taskd_page *page)
    int taskd_leave_on(int sig)
    int taskd_page_copying(taskd_page *page, int on)
    int taskd_page_away(taskd_page *page, uint32_t slot)
    int taskd_page_copied(taskd_page *page, uint32_t slot, uint64_t number)
    uint32_t taskd_interruption()
    int taskd_wait_interruption(uint32_t built_at, int timeout_ms)
    int taskd_sockets_begin(uint32_t built_at)
    int taskd_sockets_end()
    int taskd_sockets_extend()
    int taskd_sockets_clear()
    int taskd_sockets_cut()
    int taskd_sockets_list(int *fds, int max)
    int taskd_sockets_limit(uint32_t milliseconds)
    int taskd_torn()
    void taskd_streams_begin()
    int taskd_memory_register(int kind, const uint64_t *ranges, size_t n)
    uint64_t taskd_damaged()
    int taskd_damage_list(taskd_damage *out, int max)
    void taskd_damage_accept(uint64_t count)
    int taskd_spoiled()
    void taskd_attempt(uint64_t number)
    void taskd_scratch(int on)
    int taskd_allocation_of(uint64_t address, uint64_t *base, uint64_t *size, uint64_t *born)
    int taskd_poison(void *address)
    int taskd_poison_next(int kind)
    uint64_t taskd_poisoned()
    void taskd_store_release(uint64_t *address, uint64_t value)
    uint64_t taskd_load_acquire(const uint64_t *address)
    void taskd_copy_away(void *to, const void *source, size_t size)
    uint64_t taskd_checksum(const void *data, size_t size, uint64_t seed)
    # a struct and a function may share a name in C
    uint32_t taskd_abi()
    const char *taskd_version()
