from taskd.cython_api.libtaskd cimport (
    TASKD_DAMAGE_ALLOCATED, TASKD_DAMAGE_REGISTERED, taskd_damage,
)


cdef inline str kind_of(const taskd_damage *found):
    if found.kind == TASKD_DAMAGE_REGISTERED:
        return "registered"
    return "allocated" if found.kind == TASKD_DAMAGE_ALLOCATED else "unknown"


cdef inline list described(const taskd_damage *found, int n):
    return [
        {
            "addr": found[i].addr,
            "bytes": found[i].bytes,
            "base": found[i].base,
            "size": found[i].size,
            "born": found[i].born,
            "mono_ns": found[i].mono_ns,
            "kind": kind_of(&found[i]),
            "tid": found[i].tid,
            "number": found[i].number,
        }
        for i in range(n)
    ]
