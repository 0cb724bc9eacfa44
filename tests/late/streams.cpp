// Streams, events, and memory of the late device.
#include "late.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

namespace late {
namespace {

std::atomic<int64_t> delay{0};
std::atomic<bool> dropping{false};
std::mutex& lock = *new std::mutex();  // of all that follows; threads outlive main()
auto& changed = *new std::condition_variable();
bool held = false;
auto& noted = *new std::vector<std::pair<std::string, std::string>>();
std::atomic<bool> tracing{false};

struct Queue {
    std::deque<Task> tasks;
    uint64_t submitted = 0, done = 0;
};

std::vector<std::unique_ptr<Queue>>& queues() {
    static auto* all = new std::vector<std::unique_ptr<Queue>>();
    return *all;
}

void work(Queue* queue) {
    while (true) {
        Task task;
        {
            std::unique_lock<std::mutex> guard(lock);
            changed.wait(guard, [&] { return !queue->tasks.empty() && !held; });
            task = std::move(queue->tasks.front());
            queue->tasks.pop_front();
        }
        if (int64_t takes = delay) std::this_thread::sleep_for(std::chrono::microseconds(takes));
        try {
            task();
        } catch (const std::exception& error) {
            fprintf(stderr, "late: %s\n", error.what());
            abort();
        }
        task = nullptr;
        std::lock_guard<std::mutex> guard(lock);
        queue->done++;
        changed.notify_all();
    }
}

Queue* queue_of(c10::StreamId id) {  // with the lock
    auto& all = queues();
    while (all.size() <= static_cast<size_t>(id)) {
        all.push_back(std::make_unique<Queue>());
        std::thread(work, all.back().get()).detach();
    }
    return all[id].get();
}

thread_local c10::StreamId present = 0;
Graph* capturing = nullptr;
std::atomic<c10::StreamId> streams{1};

// Waits without the GIL, which tasks may need to drop tensors.
template <typename Ready>
void host_waits(Ready ready) {
    std::optional<pybind11::gil_scoped_release> release;
    if (PyGILState_Check()) release.emplace();
    std::unique_lock<std::mutex> guard(lock);
    changed.wait(guard, ready);
}

c10::Stream stream_of(c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(TYPE, 0), id);
}

}  // namespace

c10::Stream current() { return stream_of(present); }

c10::Stream exchange(c10::Stream stream) {
    auto before = present;
    present = stream.id();
    return stream_of(before);
}

c10::Stream new_stream() { return stream_of(streams++); }

void enqueue(c10::StreamId stream, Task task) {
    if (capturing != nullptr) {
        capturing->tasks.emplace_back(stream, std::move(task));
        return;
    }
    std::lock_guard<std::mutex> guard(lock);
    Queue* queue = queue_of(stream);
    queue->tasks.push_back(std::move(task));
    queue->submitted++;
    changed.notify_all();
}

void Graph::begin() { capturing = this; }

void Graph::end() { capturing = nullptr; }

void Graph::replay() const {
    for (const auto& [stream, task] : tasks) enqueue(stream, task);
}

bool idle(c10::StreamId stream) {
    std::lock_guard<std::mutex> guard(lock);
    Queue* queue = queue_of(stream);
    return queue->done == queue->submitted;
}

void wait_for(c10::StreamId stream) {
    Queue* queue;
    uint64_t until;
    {
        std::lock_guard<std::mutex> guard(lock);
        queue = queue_of(stream);
        until = queue->submitted;
    }
    host_waits([&] { return queue->done >= until; });
}

void wait_for_all() {
    std::vector<std::pair<Queue*, uint64_t>> all;
    {
        std::lock_guard<std::mutex> guard(lock);
        for (auto& queue : queues()) all.emplace_back(queue.get(), queue->submitted);
    }
    host_waits([&] {
        for (auto& [queue, until] : all)
            if (queue->done < until) return false;
        return true;
    });
}

void set_delay(int64_t microseconds) { delay = microseconds; }

void hold(bool on) {
    std::lock_guard<std::mutex> guard(lock);
    held = on;
    changed.notify_all();
}

void stop(bool on) { dropping = on; }

bool stopped() { return dropping; }

std::map<uintptr_t, size_t>& reached = *new std::map<uintptr_t, size_t>();

void register_memory(uintptr_t address, size_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    TORCH_CHECK(!reached.count(address), "late: this memory is registered already");
    reached[address] = bytes;
}

void unregister_memory(uintptr_t address) {
    std::lock_guard<std::mutex> guard(lock);
    TORCH_CHECK(reached.erase(address), "late: this memory is not registered");
}

bool is_registered(const void* address, size_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    auto at = reinterpret_cast<uintptr_t>(address);
    auto found = reached.upper_bound(at);
    return found != reached.begin() && at + bytes <= (--found)->first + found->second;
}

void accept() { TORCH_CHECK(!dropping, "FORCE STOP: the late device is stopped"); }

void trace_waits(bool on) { tracing = on; }

void note_wait(const char* what) {
    if (!tracing) return;
    std::string stack;
    if (PyGILState_Check()) {
        namespace py = pybind11;
        auto lines = py::module_::import("traceback").attr("format_stack")();
        stack = py::str("").attr("join")(lines).cast<std::string>();
    }
    std::lock_guard<std::mutex> guard(lock);
    noted.emplace_back(what, std::move(stack));
}

std::vector<std::pair<std::string, std::string>> waits(bool forget) {
    std::lock_guard<std::mutex> guard(lock);
    auto found = noted;
    if (forget) noted.clear();
    return found;
}

// -- events -----------------------------------------------------------------------------------

struct Event::State {
    uint64_t recorded = 0, done = 0;  // under `lock`
    std::chrono::steady_clock::time_point at;
};

void Event::record(c10::StreamId stream) {
    if (!state) state = std::make_shared<State>();
    uint64_t number;
    {
        std::lock_guard<std::mutex> guard(lock);
        number = ++state->recorded;
    }
    enqueue(stream, [of = state, number] {
        std::lock_guard<std::mutex> guard(lock);
        of->done = std::max(of->done, number);
        of->at = std::chrono::steady_clock::now();
        changed.notify_all();
    });
}

void Event::block(c10::StreamId stream) const {
    if (!state) return;
    uint64_t number;
    {
        std::lock_guard<std::mutex> guard(lock);
        number = state->recorded;
    }
    enqueue(stream, [of = state, number] {
        std::unique_lock<std::mutex> guard(lock);
        changed.wait(guard, [&] { return of->done >= number; });
    });
}

bool Event::done() const {
    std::lock_guard<std::mutex> guard(lock);
    return !state || state->done >= state->recorded;
}

void Event::wait() const {
    if (!state) return;
    uint64_t number;
    {
        std::lock_guard<std::mutex> guard(lock);
        number = state->recorded;
    }
    host_waits([&] { return state->done >= number; });
}

double Event::milliseconds_until(const Event& end) const {
    std::lock_guard<std::mutex> guard(lock);
    TORCH_CHECK(state && end.state, "late: an event was not recorded");
    return std::chrono::duration<double, std::milli>(end.state->at - state->at).count();
}

// -- what torch asks of a device --------------------------------------------------------------

namespace {

struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return TYPE; }
    c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
    c10::Device getDevice() const override { return c10::Device(TYPE, 0); }
    void setDevice(c10::Device) const override {}
    void uncheckedSetDevice(c10::Device) const noexcept override {}
    c10::Stream getStream(c10::Device) const override { return current(); }
    c10::Stream getDefaultStream(c10::Device) const override { return stream_of(0); }
    c10::Stream getNewStream(c10::Device, int) const override { return new_stream(); }
    c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return new_stream(); }
    c10::Stream exchangeStream(c10::Stream stream) const override { return exchange(stream); }
    c10::DeviceIndex deviceCount() const noexcept override { return 1; }
    void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
                const c10::EventFlag) const override {
        if (*event == nullptr) *event = new Event();
        static_cast<Event*>(*event)->record(stream.id());
    }
    void block(void* event, const c10::Stream& stream) const override {
        if (event != nullptr) static_cast<Event*>(event)->block(stream.id());
    }
    double elapsedTime(void* begin, void* end, const c10::DeviceIndex) const override {
        return static_cast<Event*>(begin)->milliseconds_until(*static_cast<Event*>(end));
    }
    bool queryEvent(void* event) const override {
        return event == nullptr || static_cast<Event*>(event)->done();
    }
    void synchronizeEvent(void* event) const override {
        note_wait("event");
        if (event != nullptr) static_cast<Event*>(event)->wait();
    }
    void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
        delete static_cast<Event*>(event);
    }
    bool queryStream(const c10::Stream& stream) const override { return idle(stream.id()); }
    void synchronizeStream(const c10::Stream& stream) const override {
        note_wait("stream");
        wait_for(stream.id());
    }
    void synchronizeDevice(const c10::DeviceIndex) const override {
        note_wait("device");
        wait_for_all();
    }
    void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Memory final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
        void* data = bytes ? c10::alloc_cpu(bytes) : nullptr;
        return {data, data, &c10::free_cpu, c10::Device(TYPE, 0)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
    void copy_data(void* to, const void* from, std::size_t bytes) const override {
        memcpy(to, from, bytes);
    }
};

Memory memory;
REGISTER_ALLOCATOR(TYPE, &memory);

struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    c10::DeviceIndex deviceCount() const override { return 1; }
    void setCurrentDevice(c10::DeviceIndex) const override {}
    c10::DeviceIndex getCurrentDevice() const override { return 0; }
    c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
    c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
    bool isPinnedPtr(const void*) const override { return false; }
    void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
        auto data = memory.allocate(bytes);
        auto* of = storage.unsafeGetStorageImpl();
        wait_for_all();
        memcpy(data.get(), of->data(), std::min(bytes, of->nbytes()));
        of->set_data_ptr_noswap(std::move(data));
        of->set_nbytes(bytes);
    }
};

const bool registered = [] {
    at::RegisterPrivateUse1HooksInterface(new Hooks());
    return true;
}();

}  // namespace
}  // namespace late
