// What operations do on tensors of the late device: their shapes are known at once, what they
// compute is put into the current stream's queue.
#include "late.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

namespace late {

at::Tensor hosted(const at::Tensor& tensor) {
    auto storage = tensor.storage();
    auto* data = static_cast<char*>(storage.mutable_data());
    auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
    if (data == nullptr) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
    data += tensor.storage_offset() * tensor.itemsize();
    return at::from_blob(data, tensor.sizes(), tensor.strides(), [storage](void*) {}, options);
}

namespace {

using torch::jit::Stack;

bool is_late(const at::Tensor& tensor) {
    return tensor.defined() && tensor.device().type() == TYPE;
}

// Applies `change` to each tensor in the value.
template <typename Change>
c10::IValue mapped(const c10::IValue& value, Change change) {
    if (value.isTensor()) return change(value.toTensor());
    if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (at::Tensor tensor : value.toTensorList()) list.push_back(change(tensor));
        return list;
    }
    if (value.isList() && value.toListRef().size() && value.type()->cast<c10::ListType>()) {
        bool any = false;
        c10::List<std::optional<at::Tensor>> list;
        for (const auto& item : value.toListRef()) {
            if (!item.isTensor() && !item.isNone()) return value;
            any = true;
            list.push_back(item.isNone() ? std::nullopt
                                         : std::optional<at::Tensor>(change(item.toTensor())));
        }
        if (any) return list;
    }
    if (value.isDevice() && value.toDevice().type() == TYPE) return c10::Device(at::kCPU);
    return value;
}

std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
    std::vector<at::Tensor> found;
    mapped(value, [&](const at::Tensor& tensor) {
        if (tensor.defined()) found.push_back(tensor);
        return tensor;
    });
    return found;
}

at::Tensor on_cpu(const at::Tensor& tensor) { return is_late(tensor) ? hosted(tensor) : tensor; }

at::Tensor on_meta(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kMeta);
    return at::empty_strided(tensor.sizes(), tensor.strides(), options);
}

at::Tensor like(const at::Tensor& of) {
    auto options = at::TensorOptions().dtype(of.dtype()).device(c10::Device(TYPE, 0));
    return at::empty_strided(of.sizes(), of.strides(), options);
}

struct BelowAutograd {
    c10::impl::ExcludeDispatchKeyGuard autograd{c10::autograd_dispatch_keyset};
    c10::impl::ExcludeDispatchKeyGuard versions{c10::DispatchKey::ADInplaceOrView};
};

// Puts the call into the queue; `outputs`: the new tensors that it fills.
void later(const c10::OperatorHandle& op, const Stack& arguments, std::vector<at::Tensor> outputs) {
    enqueue(current().id(), [op, arguments, outputs = std::move(outputs)] {
        if (stopped()) return;
        BelowAutograd below;
        at::NoGradGuard without;
        Stack stack;
        for (const auto& argument : arguments) stack.push_back(mapped(argument, on_cpu));
        op.callBoxed(stack);
        size_t next = 0;
        for (const auto& result : stack)
            for (const auto& tensor : tensors_in(result))
                if (next < outputs.size()) hosted(outputs[next++]).copy_(tensor);
    });
}

// Random numbers of a device come from its own generator: this one has none.
bool draws(const c10::OperatorHandle& op) {
    for (const auto& argument : op.schema().arguments())
        if (argument.name() == "generator") return true;
    return op.schema().name() == "aten::native_dropout";
}

bool is_alias(const c10::Argument& result) {
    return result.alias_info() != nullptr && result.alias_info()->isWrite();
}

c10::IValue argument_of(const c10::FunctionSchema& schema, const c10::Argument& result,
                        const Stack& arguments) {
    for (size_t i = 0; i < arguments.size(); i++) {
        const auto* info = schema.arguments()[i].alias_info();
        if (info != nullptr && *info == *result.alias_info()) return arguments[i];
    }
    TORCH_CHECK(false, "late: no argument for a result of ", schema.name());
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
    accept();
    const auto& schema = op.schema();
    auto arguments = torch::jit::pop(*stack, schema.arguments().size());
    bool copies = schema.name() == "aten::_foreach_copy_";
    std::vector<at::Tensor> given;
    for (const auto& argument : arguments)
        for (const auto& tensor : tensors_in(argument)) given.push_back(tensor);
    if (copies) {  // between devices it is one copy after the other, as on CUDA
        auto to = arguments[0].toTensorVector(), from = arguments[1].toTensorVector();
        for (size_t i = 0; i < to.size(); i++) to[i].copy_(from[i], arguments[2].toBool());
        return;
    }
    for (const auto& tensor : given)
        TORCH_CHECK(is_late(tensor) || tensor.dim() == 0,
                    "Expected all tensors to be on the same device, but found at least two devices,"
                    " late:0 and ", tensor.device(), " (", schema.name(), ")");
    TORCH_CHECK(!draws(op), "late: ", schema.name(), " draws random numbers: draw them on the CPU");
    bool values = false;  // it returns what is no tensor
    for (const auto& result : schema.returns()) {
        auto type = result.type();
        bool tensors = type->isSubtypeOf(*c10::TensorType::get()) ||
                       type->isSubtypeOf(*c10::ListType::ofTensors());
        values |= !tensors;
        TORCH_CHECK(result.alias_info() == nullptr || result.alias_info()->isWrite(),
                    "late: no view ", schema.name());
    }
    BelowAutograd below;
    Stack shapes;
    if (!values) {
        for (const auto& argument : arguments) shapes.push_back(mapped(argument, on_meta));
        auto metas = shapes;
        try {
            op.callBoxed(shapes);
            for (size_t i = 0; i < arguments.size(); i++) {  // out= that had another size
                const auto* info = schema.arguments()[i].alias_info();
                if (info == nullptr || !info->isWrite() || !arguments[i].isTensor()) continue;
                auto out = arguments[i].toTensor();
                if (out.sizes() != metas[i].toTensor().sizes())
                    out.resize_(metas[i].toTensor().sizes());
            }
        } catch (const c10::Error&) {
            values = true;  // its shape depends on values
        }
    }
    std::vector<at::Tensor> outputs;
    if (values) {
        note_wait(schema.name().c_str());
        wait_for(current().id());
        accept();
        Stack now;
        for (const auto& argument : arguments) now.push_back(mapped(argument, on_cpu));
        op.callBoxed(now);
        for (size_t i = 0; i < now.size(); i++) {
            const auto& result = schema.returns()[i];
            if (is_alias(result)) {
                stack->push_back(argument_of(schema, result, arguments));
                continue;
            }
            stack->push_back(mapped(now[i], [](const at::Tensor& tensor) {
                auto made = like(tensor);
                hosted(made).copy_(tensor);
                return made;
            }));
        }
        return;
    }
    std::vector<at::Tensor> filled;
    for (size_t i = 0; i < shapes.size(); i++) {
        const auto& result = schema.returns()[i];
        if (is_alias(result)) {
            auto same = argument_of(schema, result, arguments);
            for (const auto& tensor : tensors_in(same)) filled.push_back(tensor);
            stack->push_back(same);
            continue;
        }
        stack->push_back(mapped(shapes[i], [&](const at::Tensor& tensor) {
            if (!tensor.defined()) return tensor;
            filled.push_back(like(tensor));
            return filled.back();
        }));
    }
    later(op, arguments, std::move(filled));
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
    auto type = at::dtype_or_default(dtype);
    return at::detail::empty_generic(size, c10::GetAllocator(TYPE),
                                     c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type,
                                     format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
    auto type = at::dtype_or_default(dtype);
    return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(TYPE),
                                             c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                             type);
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
    accept();
    auto stream = current().id();
    // from the host what is there now, as the driver stages it
    at::Tensor from = is_late(self) ? self : self.clone();
    enqueue(stream, [from, to] {
        if (!stopped()) on_cpu(to).copy_(on_cpu(from));
    });
    if (!is_late(to) && !(non_blocking && is_registered(to.data_ptr(), to.nbytes()))) {
        note_wait("copy to the host");
        wait_for(stream);
        accept();
    }
    return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
    to.resize_(self.sizes());
    return copy_from(self, to, false);
}

at::Scalar local_scalar(const at::Tensor& self) {
    note_wait("item");
    wait_for(current().id());
    accept();
    return hosted(self).item();
}

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size,
                         std::optional<at::MemoryFormat>) {
    auto* impl = self.unsafeGetTensorImpl();
    size_t need = at::detail::computeStorageNbytesContiguous(size, self.itemsize(),
                                                             self.storage_offset());
    if (need > self.storage().nbytes())
        at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), need);
    impl->set_sizes_contiguous(size);
    return self;
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("empty.memory_format", &empty);
    m.impl("empty_strided", &empty_strided);
    m.impl("as_strided", &at::native::as_strided_tensorimpl);
    m.impl("view", &at::native::view);
    m.impl("_reshape_alias", &at::native::_reshape_alias);
    m.impl("unfold", &at::native::unfold);
    m.impl("resize_", &resize);
    m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
    m.impl("set_.source_Tensor", &at::native::set_tensor_);
    m.impl("_copy_from", &copy_from);
    m.impl("_copy_from_and_resize", &copy_from_and_resize);
    m.impl("_local_scalar_dense", &local_scalar);
}

}  // namespace
}  // namespace late
