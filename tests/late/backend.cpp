// Collectives of the late device: each is put into its communicator's stream, as NCCL's kernels
// are, and gloo carries it out. An abort ends the one under way with garbage in its outputs, and
// those behind it at once; the work that waits for them in other streams runs on.
#include "late.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <thread>

namespace late {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

struct Communicator {
    std::atomic<bool> aborted{false};
    c10::StreamId stream = new_stream().id();
};

class LateWork : public c10d::Work {
   public:
    LateWork(int rank, c10d::OpType type, Event done, Tensors outputs)
        : Work(rank, type), done_(std::move(done)), outputs_(std::move(outputs)) {}

    bool isCompleted() override { return done_.done(); }
    bool isSuccess() const override { return true; }
    std::vector<at::Tensor> result() override { return outputs_; }
    void synchronize() override { done_.block(current().id()); }
    bool wait(std::chrono::milliseconds) override {
        synchronize();
        return true;
    }
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
        if (!future_) {  // the present stream is to wait for its value
            synchronize();
            future_ = c10::make_intrusive<c10::ivalue::Future>(
                c10::ListType::create(c10::TensorType::get()),
                std::vector<c10::Device>{c10::Device(TYPE, 0)});
            future_->markCompleted(c10::IValue(outputs_));
        }
        return future_;
    }

   private:
    Event done_;
    Tensors outputs_;
    c10::intrusive_ptr<c10::ivalue::Future> future_;
};

void spoil(const Tensors& outputs) {
    for (const auto& output : outputs) {
        auto memory = hosted(output);
        if (memory.is_floating_point()) memory.mul_(1.75).add_(0.125);
    }
}

Tensors flat(const std::vector<Tensors>& lists) {
    Tensors all;
    for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
    return all;
}

class LateBackend : public c10d::Backend {
   public:
    LateBackend(c10::intrusive_ptr<c10d::Backend> gloo, int rank, int size)
        : Backend(rank, size), gloo_(std::move(gloo)), of_(std::make_shared<Communicator>()) {}

    const std::string getBackendName() const override { return "late"; }
    uint64_t getSequenceNumberForGroup() override { return sequence_; }
    void setSequenceNumberForGroup() override {}
    // As NCCL's, it waits for what the communicator has queued.
    void abort() override {
        of_->aborted = true;
        wait_for(of_->stream);
    }
    void shutdown() override { abort(); }
    bool aborted() const { return of_->aborted; }

    WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
        return put(c10d::OpType::ALLREDUCE, tensors, {}, [opts](auto& gloo, auto& out, auto&) {
            return gloo->allreduce(out, opts);
        });
    }
    WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
        return put(c10d::OpType::BROADCAST, tensors, {}, [opts](auto& gloo, auto& out, auto&) {
            return gloo->broadcast(out, opts);
        });
    }
    WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
        return put(c10d::OpType::REDUCE, tensors, {}, [opts](auto& gloo, auto& out, auto&) {
            return gloo->reduce(out, opts);
        });
    }
    WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                      const c10d::AllgatherOptions& opts) override {
        return put(c10d::OpType::ALLGATHER, flat(outputs), inputs,
                   [opts](auto& gloo, auto& out, auto& in) {
                       std::vector<Tensors> lists{out};
                       return gloo->allgather(lists, in, opts);
                   });
    }
    WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                            const c10d::AllgatherOptions& opts) override {
        return put(c10d::OpType::_ALLGATHER_BASE, {output}, {input},
                   [opts](auto& gloo, auto& out, auto& in) {
                       return gloo->_allgather_base(out[0], in[0], opts);
                   });
    }
    WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                 const c10d::ReduceScatterOptions& opts) override {
        return put(c10d::OpType::_REDUCE_SCATTER_BASE, {output}, {input},
                   [opts](auto& gloo, auto& out, auto& in) {
                       return gloo->_reduce_scatter_base(out[0], in[0], opts);
                   });
    }
    WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& to,
                          std::vector<int64_t>& from,
                          const c10d::AllToAllOptions& opts) override {
        return put(c10d::OpType::ALLTOALL_BASE, {output}, {input},
                   [opts, to, from](auto& gloo, auto& out, auto& in) mutable {
                       return gloo->alltoall_base(out[0], in[0], to, from, opts);
                   });
    }
    WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                   const c10d::GatherOptions& opts) override {
        return put(c10d::OpType::GATHER, flat(outputs), inputs,
                   [opts](auto& gloo, auto& out, auto& in) {
                       std::vector<Tensors> lists;
                       if (!out.empty()) lists.push_back(out);
                       return gloo->gather(lists, in, opts);
                   });
    }
    WorkPtr send(Tensors& tensors, int to, int tag) override {
        return put(c10d::OpType::SEND, {}, tensors, [to, tag](auto& gloo, auto&, auto& in) {
            return gloo->send(in, to, tag);
        });
    }
    WorkPtr recv(Tensors& tensors, int from, int tag) override {
        return put(c10d::OpType::RECV, tensors, {}, [from, tag](auto& gloo, auto& out, auto&) {
            return gloo->recv(out, from, tag);
        });
    }
    WorkPtr barrier(const c10d::BarrierOptions&) override {
        Tensors one{at::zeros({1}, at::TensorOptions().device(c10::Device(TYPE, 0)))};
        auto work = allreduce(one, {});
        note_wait("barrier");
        wait_for(of_->stream);
        return work;
    }

   private:
    template <typename Call>
    WorkPtr put(c10d::OpType type, Tensors outputs, Tensors inputs, Call call) {
        TORCH_CHECK(!of_->aborted, "NCCL communicator was aborted on rank ", rank_, ".");
        for (const auto& list : {outputs, inputs})
            for (const auto& tensor : list)
                TORCH_CHECK(tensor.device().type() == TYPE, "Tensors must be on the late device");
        accept();
        sequence_++;
        Event ready;
        ready.record(current().id());
        ready.block(of_->stream);
        enqueue(of_->stream, [of = of_, gloo = gloo_, outputs, inputs, call]() mutable {
            if (stopped()) return;
            Tensors out, in;
            for (const auto& tensor : outputs) out.push_back(hosted(tensor).contiguous().clone());
            for (const auto& tensor : inputs) in.push_back(hosted(tensor).contiguous().clone());
            if (!carried_out(*of, gloo, out, in, call)) return spoil(outputs);
            for (size_t i = 0; i < out.size(); i++) hosted(outputs[i]).copy_(out[i]);
        });
        Event done;
        done.record(of_->stream);
        return c10::make_intrusive<LateWork>(rank_, type, done, std::move(outputs));
    }

    // False: it was aborted. A peer that is gone is no error of the device, which waits.
    template <typename Call>
    static bool carried_out(Communicator& of, c10::intrusive_ptr<c10d::Backend>& gloo, Tensors& out,
                            Tensors& in, Call& call) {
        if (of.aborted) return false;
        enum State { UNDER_WAY, DONE, FAILED };
        auto state = std::make_shared<std::atomic<State>>(UNDER_WAY);
        // gloo's sends end when they are waited for; it may write into its tensors after an abort
        std::thread([state, gloo, out, in, call]() mutable {
            try {
                if (auto work = call(gloo, out, in)) work->wait();
                *state = DONE;
            } catch (const std::exception&) {
                *state = FAILED;
            }
        }).detach();
        while (*state != DONE && !of.aborted && !stopped())
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        return *state == DONE;
    }

    c10::intrusive_ptr<c10d::Backend> gloo_;
    std::shared_ptr<Communicator> of_;
    std::atomic<uint64_t> sequence_{0};
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    namespace py = pybind11;
    py::class_<LateBackend, c10d::Backend, c10::intrusive_ptr<LateBackend>>(m, "LateBackend")
        .def(py::init<c10::intrusive_ptr<c10d::Backend>, int, int>())
        .def("abort", &LateBackend::abort)
        .def_property_readonly("aborted", &LateBackend::aborted);
    py::class_<Graph>(m, "Graph")
        .def(py::init<>())
        .def("begin", &Graph::begin)
        .def("end", &Graph::end)
        .def("replay", &Graph::replay);
    m.def("set_delay", &set_delay, "microseconds that each operation takes");
    m.def("hold", &hold, "begin no operation");
    m.def("synchronize", [] {
        note_wait("device");
        wait_for_all();
    });
    m.def("stop", &stop, "drop what is queued, as an NPU does; not what is queued once it is off");
    m.def("idle", [] { return idle(current().id()); });
    m.def("register_memory", &register_memory);
    m.def("unregister_memory", &unregister_memory);
    m.def("trace_waits", &trace_waits);
    m.def("waits", &waits);
    m.def("on_cpu", &hosted, "the same memory as it is now, without waiting");
}

}  // namespace late
