// A device whose work is executed later, by threads, in the memory of the CPU. The host runs ahead
// of it as it does of a GPU: operations are put into a stream's queue, collectives too, and only
// what reads a value waits. See __init__.py.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>

namespace late {

constexpr c10::DeviceType TYPE = c10::DeviceType::PrivateUse1;
using Task = std::function<void()>;

// -- streams ----------------------------------------------------------------------------------

c10::Stream current();
c10::Stream exchange(c10::Stream stream);
c10::Stream new_stream();
void enqueue(c10::StreamId stream, Task task);
bool idle(c10::StreamId stream);
void wait_for(c10::StreamId stream);  // the host waits
void wait_for_all();

// Recorded in one stream; another waits for it, or the host does.
struct Event {
    void record(c10::StreamId stream);
    void block(c10::StreamId stream) const;
    bool done() const;
    double milliseconds_until(const Event& end) const;
    void wait() const;
    struct State;
    std::shared_ptr<State> state;
};

// Memory of the host that the device reaches by itself. A copy into other memory keeps the host
// waiting, as the driver's own buffers do.
void register_memory(uintptr_t address, size_t bytes);
void unregister_memory(uintptr_t address);
bool is_registered(const void* address, size_t bytes);

// Work takes so long, in microseconds each; held: none begins.
void set_delay(int64_t microseconds);
void hold(bool on);

// Stopped: what is queued is dropped, an update in the middle too, and calls raise.
void stop(bool on);
bool stopped();
void accept();

// Counts a call by which the host waits for the device.
void note_wait(const char* what);
std::vector<std::pair<std::string, std::string>> waits(bool forget);
void trace_waits(bool on);

// What is enqueued from now on is kept instead, to be enqueued as often as it is replayed.
struct Graph {
    void begin();
    void end();
    void replay() const;
    std::vector<std::pair<c10::StreamId, Task>> tasks;
};

// -- tensors ----------------------------------------------------------------------------------

// The same memory as a tensor of the CPU, for a task in the queue.
at::Tensor hosted(const at::Tensor& tensor);

}  // namespace late
