// What a Proof needs to know of a model and the parts that it is trained with.
#pragma once

#include <concepts>

#include "weft/nn/module.h"
#include "weft/train/checkpoints.h"
#include "weft/train/proof.h"

namespace weft::train {

/// Whether the part is an engine that copies rank 0's buffers.
template <class Part>
bool shares_buffers(const Part& part) {
  if constexpr (requires { part.broadcasts_buffers(); }) return part.broadcasts_buffers();
  return Engine<Part>;
}

/// What a Proof needs to know of a model, which must outlive it, and of the parts that it is
/// trained with.
template <class Model, class... Parts>
ProvedRun proved_run(Model& model, const Parts&... parts) {
  ProvedRun run;
  run.shares_buffers = InParts<Model> || (shares_buffers(parts) || ...);
  if constexpr (std::derived_from<Model, nn::ModuleBase>) {
    run.module = model;
  } else {
    if constexpr (requires { model.module(); }) run.module = model.module();
    run.state = [&model] { return model.state_dict(); };
  }
  return run;
}

}  // namespace weft::train
