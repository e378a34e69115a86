#include "weft/nn/module.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "weft/autograd/autograd.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/thread_local.h"
#include "weft/nn/module_node.h"
#include "weft/nn/repr.h"
#include "weft/nn/wrapper_prefix.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::nn {

namespace detail {

void set_data(const Tensor& tensor, const Tensor& value) {
  TensorImpl& to = *tensor.impl();
  const TensorImpl& from = *value.impl();
  to.storage = from.storage;
  to.offset = from.offset;
  to.shape = from.shape;
  to.strides = from.strides;
  to.dtype = from.dtype;
}

Tensor placed(bool is_image_weight, const Tensor& x, Device device) {
  if (!is_image_weight || x.device() == device) return raw::to(x, device);
  const MemoryFormat format = device.is_cpu() ? MemoryFormat::nchw : MemoryFormat::nhwc;
  return raw::to(raw::contiguous(x, format), device);
}

namespace {

constinit ThreadLocal<CloneScope::Impl*> current_clone;

}  // namespace

struct CloneScope::Impl {
  std::unordered_map<const ModuleNode*, std::shared_ptr<ModuleNode>> nodes;
  std::unordered_map<const TensorImpl*, Tensor> tensors;
  std::unordered_map<const void*, std::string> not_copied;  // original -> name
  std::optional<Device> device;                             // device of the copies
  Impl* outer = nullptr;

  std::shared_ptr<ModuleNode> copy(const std::shared_ptr<ModuleNode>& node,
                                   const std::string& prefix) {
    if (auto found = nodes.find(node.get()); found != nodes.end()) return found->second;
    auto fresh = std::make_shared<ModuleNode>(*node);
    for (auto& entry : fresh->tensors) {
      Tensor& mine = tensors[entry.tensor.impl()];
      if (!mine.defined()) {
        const Device to = device.value_or(entry.tensor.device());
        mine = to == entry.tensor.device() ? raw::clone(entry.tensor)
                                           : placed(entry.is_image_weight, entry.tensor, to);
        if (entry.tensor.requires_grad()) mine.set_requires_grad();
        not_copied[entry.tensor.impl()] = prefix + entry.name;
      }
      entry.tensor = mine;
    }
    for (auto& c : fresh->children) c.node = copy(c.node, prefix + *c.name + ".");
    nodes[node.get()] = fresh;
    not_copied[node.get()] = prefix.empty() ? "the module" : prefix.substr(0, prefix.size() - 1);
    return fresh;
  }
};

CloneScope::CloneScope(const std::shared_ptr<ModuleNode>& root, std::optional<Device> device)
    : impl_(std::make_unique<Impl>()) {
  check_not_cut("clone", *root);
  const Scoped owner(&ThreadState::memory_owner, MemoryOwner::parameters);
  impl_->device = device;
  impl_->copy(root, "");
  impl_->outer = std::exchange(*current_clone, impl_.get());
}

CloneScope::~CloneScope() { *current_clone = impl_->outer; }

void CloneScope::check_complete() const {
  if (impl_->not_copied.empty()) return;
  std::vector<std::string> names;
  for (const auto& [original, name] : impl_->not_copied) names.push_back(name);
  std::sort(names.begin(), names.end());
  WEFT_THROW(InvalidArgument, "clone", names.front(),
             " is still shared with the original: hold parameters as nn::Parameter and modules as "
             "members, nn::Sequential or std::vector, not as Tensor or behind a shared pointer");
}

bool cloning() { return *current_clone != nullptr; }

}  // namespace detail

using detail::ModuleNode;

Parameter::Parameter(const Parameter& other) : Tensor(other) {
  if (!*detail::current_clone || !other.defined()) return;
  const auto found = (*detail::current_clone)->tensors.find(other.impl());
  if (found == (*detail::current_clone)->tensors.end()) return;
  static_cast<Tensor&>(*this) = found->second;
  (*detail::current_clone)->not_copied.erase(other.impl());
}

Parameter& Parameter::operator=(const Parameter& other) {
  Parameter copy(other);
  return *this = std::move(copy);
}

ModuleBase::ModuleBase(std::string type_name) : node_(std::make_shared<ModuleNode>()) {
  node_->type_name = std::move(type_name);
}

ModuleBase::ModuleBase(const ModuleBase& other) : node_(other.node_), name_(other.name_) {
  if (!*detail::current_clone) return;
  const auto found = (*detail::current_clone)->nodes.find(other.node_.get());
  if (found == (*detail::current_clone)->nodes.end()) return;
  node_ = found->second;
  (*detail::current_clone)->not_copied.erase(other.node_.get());
}

ModuleBase& ModuleBase::operator=(const ModuleBase& other) {
  ModuleBase copy(other);
  return *this = std::move(copy);
}

void ModuleBase::throw_moved_from() {
  WEFT_THROW(InvalidArgument, "module",
             "this module was moved from: it holds nothing until another is assigned to it");
}

const std::string& ModuleBase::name() const { return name_ ? *name_ : node().name; }
const std::string& ModuleBase::type_name() const { return node().type_name; }
void ModuleBase::set_type_name(std::string name) { node().type_name = std::move(name); }
std::any& ModuleBase::shared_state() const { return node().shared_state; }

detail::Called ModuleBase::called() const {
  check_not_moved_from();
  const auto* hooks = node_->hooks ? &node_->hooks : nullptr;
  const std::string& own = name();
  if (!own.empty()) return {own.c_str(), hooks};
  const ThreadState& state = thread_state();
  if (state.path && state.grad_enabled) [[unlikely]]
    check_not_forgotten();
  return {nullptr, hooks};
}

void ModuleBase::check_not_forgotten() const {
  for (const Tensor& p : parameters()) {
    WEFT_CHECK(!p.requires_grad(), InvalidArgument, "module", "a ", type_name(),
               " is called within the forward of another module and is no child of one: it would "
               "be neither trained nor saved. Make the member a child: `",
               type_name(), " part = child(\"part\", ", type_name(),
               "(...));`, or call its requires_grad(false) if it is to stay as it is");
  }
}

void ModuleBase::take_mode_of(const ModuleBase& other) { node().training = other.node().training; }

namespace {

NamedTensors collect(ModuleNode& node, bool buffers, bool recurse) {
  NamedTensors result;
  std::unordered_set<const TensorImpl*> seen;
  node.visit(
      "",
      [&](const std::string& name, ModuleNode::Entry& entry) {
        if (entry.is_buffer == buffers && seen.insert(entry.tensor.impl()).second)
          result.emplace_back(name, entry.tensor);
      },
      recurse);
  return result;
}

template <class F>
void for_each_tensor(ModuleNode& node, F&& f) {
  std::unordered_set<const TensorImpl*> seen;
  node.visit("", [&](const std::string&, ModuleNode::Entry& entry) {
    if (seen.insert(entry.tensor.impl()).second) f(entry);
  });
}

/// Uses no names, so it allocates nothing and may run in a training step. A parameter that is
/// registered twice is visited twice.
template <class F>
void for_each_parameter(const ModuleNode& node, const F& f) {
  for (const ModuleNode::Entry& entry : node.tensors) {
    if (!entry.is_buffer) f(entry.tensor);
  }
  for (const ModuleNode::Child& child : node.children) for_each_parameter(*child.node, f);
}

void set_moved_grad(const Tensor& parameter, const Tensor& grad) {
  grad.storage()->set_owner(MemoryOwner::gradients);
  parameter.set_grad(grad);
}

void check_name(const ModuleNode& node, const std::string& name) {
  WEFT_CHECK(!name.empty() && name.find('.') == std::string::npos, InvalidArgument, "module",
             "a name must be non-empty and without dots, got '", name, "'");
  WEFT_CHECK(!node.has(name), InvalidArgument, "module", node.type_name, " already has a '", name,
             "'");
}

}  // namespace

Parameter ModuleBase::parameter(const std::string& name, Tensor value) {
  check_name(node(), name);
  value.set_requires_grad();
  value.storage()->set_owner(MemoryOwner::parameters);
  node_->tensors.push_back({name, value, false});
  return Parameter(std::move(value));
}

Parameter ModuleBase::buffer(const std::string& name, Tensor value) {
  check_name(node(), name);
  value.storage()->set_owner(MemoryOwner::parameters);
  node_->tensors.push_back({name, value, true});
  return Parameter(std::move(value));
}

void ModuleBase::add_child(const std::string& name, ModuleBase& module) {
  check_name(node(), name);
  std::string& first = module.node().name;
  if (first.empty()) first = name;
  module.name_ = std::make_shared<const std::string>(name);
  node_->children.push_back({module.name_, module.node_});
}

void ModuleBase::set_description(std::string text) { node().description = std::move(text); }

NamedTensors ModuleBase::named_parameters(bool recurse) const {
  return collect(node(), false, recurse);
}
NamedTensors ModuleBase::named_buffers(bool recurse) const {
  return collect(node(), true, recurse);
}

std::vector<Tensor> ModuleBase::parameters() const {
  std::vector<Tensor> result;
  for (auto& [name, tensor] : named_parameters()) result.push_back(std::move(tensor));
  return result;
}

std::int64_t ModuleBase::parameter_count() const {
  std::int64_t count = 0;
  for_each_tensor(node(), [&](const ModuleNode::Entry& e) {
    if (!e.is_buffer) count += ModuleNode::whole_numel(e);
  });
  return count;
}

bool ModuleBase::is_training() const { return node().training; }

void ModuleBase::train(bool training) {
  apply([&](ModuleBase& m) { m.node_->training = training; });
}

void ModuleBase::to(Device device) {
  detail::check_not_cut("to", node());
  const Scoped owner(&ThreadState::memory_owner, MemoryOwner::parameters);
  for_each_tensor(node(), [&](ModuleNode::Entry& e) {
    const Tensor grad = e.is_buffer ? Tensor() : e.tensor.grad();
    detail::set_data(e.tensor, detail::placed(e.is_image_weight, e.tensor, device));
    if (grad.defined()) set_moved_grad(e.tensor, detail::placed(e.is_image_weight, grad, device));
  });
}

void ModuleBase::to(DType dtype) {
  detail::check_not_cut("to", node());
  WEFT_CHECK(is_floating(dtype), Dtype, "to", "a module's weights would be lost as ", dtype,
             ": expected a floating dtype");
  const Scoped owner(&ThreadState::memory_owner, MemoryOwner::parameters);
  for_each_tensor(node(), [&](ModuleNode::Entry& e) {
    if (!is_floating(e.tensor.dtype())) return;
    const Tensor grad = e.is_buffer ? Tensor() : e.tensor.grad();
    detail::set_data(e.tensor, raw::to(e.tensor, dtype));
    if (grad.defined()) set_moved_grad(e.tensor, raw::to(grad, dtype));
  });
}

void ModuleBase::requires_grad(bool requires_grad) {
  for_each_parameter(node(), [&](const Tensor& t) { t.set_requires_grad(requires_grad); });
}

void ModuleBase::zero_grad() {
  for_each_parameter(node(), [](const Tensor& t) { autograd::zero_grad(t); });
}

NamedModules ModuleBase::named_modules() const {
  NamedModules result;
  std::unordered_set<const ModuleNode*> seen;
  const std::function<void(const ModuleBase&, const std::string&)> add =
      [&](const ModuleBase& module, const std::string& path) {
        if (!seen.insert(module.node_.get()).second) return;
        result.emplace_back(path, module);
        for (const ModuleNode::Child& child : module.node().children) {
          add({child.node, child.name}, path.empty() ? *child.name : path + '.' + *child.name);
        }
      };
  add(*this, "");
  return result;
}

void ModuleBase::apply(const std::function<void(ModuleBase&)>& f) {
  check_not_moved_from();
  WEFT_CHECK(f, InvalidArgument, "apply", "the function is empty");
  ModuleNode::post_order(node_, name_, f);
}

NamedTensors ModuleBase::state_dict() const {
  NamedTensors result;
  node().visit("", [&](const std::string& name, ModuleNode::Entry& entry) {
    result.emplace_back(name, raw::alias(entry.tensor));
  });
  return result;
}

LoadResult ModuleBase::load_state_dict(const NamedTensors& values, bool strict) {
  std::unordered_map<std::string, Tensor> by_name;
  for (const auto& [name, tensor] : values) {
    WEFT_CHECK(by_name.emplace(name, tensor).second, InvalidArgument, "load_state_dict", "'", name,
               "' is given twice");
  }
  LoadResult result;
  std::vector<std::string> wrong_shapes;
  std::vector<std::pair<Tensor, Tensor>> copies;
  for (const auto& [name, mine] : state_dict()) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      result.missing.push_back(name);
      continue;
    }
    if (found->second.shape() == mine.shape()) {
      copies.emplace_back(mine, found->second);
    } else {
      wrong_shapes.push_back(name + " " + weft::to_string(found->second.shape()) + " for " +
                             weft::to_string(mine.shape()));
    }
    by_name.erase(found);
  }
  for (const auto& [name, tensor] : values)
    if (by_name.count(name)) result.unexpected.push_back(name);

  std::string problems;
  const auto list = [&](const char* title, const std::vector<std::string>& entries) {
    if (entries.empty()) return;
    problems +=
        (problems.empty() ? "" : "; ") + std::string(title) + ": " + detail::first_few(entries);
  };
  if (strict) {
    list("missing", result.missing);
    list("unexpected", result.unexpected);
  }
  list("of another shape", wrong_shapes);
  const std::string prefix = problems.empty() ? "" : wrapper_prefix(values);
  if (!prefix.empty() && wrapper_prefix(state_dict()) != prefix) {
    problems += "; all names begin with \"" + prefix +
                "\", as a wrapper of PyTorch's saves them: nn::strip_wrappers(values) removes it";
  }
  WEFT_CHECK(problems.empty(), InvalidArgument, "load_state_dict",
             "these values are of another model than ", type_name(), ": ", problems);
  for (const auto& [mine, value] : copies) raw::copy_(mine, value);
  return result;
}

namespace {

std::string describe(const ModuleNode& node, const std::string& indent) {
  const std::int64_t own = node.own_parameter_count();
  const std::string count = own ? "  # " + detail::with_commas(own) + " parameters" : "";
  if (node.children.empty()) return node.type_name + "(" + node.description + ")" + count;
  std::string text = node.type_name + "(" + count + "\n";
  for (const ModuleNode::Child& c : node.children)
    text += indent + "  (" + *c.name + "): " + describe(*c.node, indent + "  ") + "\n";
  return text + indent + ")";
}

}  // namespace

std::string ModuleBase::to_string() const {
  return describe(node(), "") + "\n" + detail::with_commas(parameter_count()) + " parameters";
}

}  // namespace weft::nn
