// Models that C programs open by name: weft_c.h.
#pragma once

#include <functional>
#include <string>

#include "weft/nn/any_module.h"

namespace weft::c_api {

/// Makes a model known while this object lives, as one of the shared library, or the program, that
/// contains the object.
class NamedModel {
 public:
  NamedModel(std::string name, std::function<nn::AnyModule()> make);
  ~NamedModel();
  NamedModel(const NamedModel&) = delete;
  NamedModel& operator=(const NamedModel&) = delete;

  const std::string& name() const { return name_; }
  nn::AnyModule make() const { return make_(); }

 private:
  std::string name_;
  std::function<nn::AnyModule()> make_;
};

}  // namespace weft::c_api

#define WEFT_C_MODEL_OF_LINE(line) weft_c_model_of_line_##line
#define WEFT_C_MODEL_VARIABLE(line) WEFT_C_MODEL_OF_LINE(line)

/// In a source of a shared library, outside of functions: weft_model_open(library, name, device)
/// calls the factory, which returns any module that nn::AnyModule takes.
///   WEFT_C_MODEL("resnet18", [] { return ResNet18(1000); })
#define WEFT_C_MODEL(name, ...)                                                            \
  [[maybe_unused]] static const ::weft::c_api::NamedModel WEFT_C_MODEL_VARIABLE(__LINE__){ \
      name, __VA_ARGS__};
