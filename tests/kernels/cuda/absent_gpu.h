// The properties of GPUs that are not here, for cuDNN.
#pragma once

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

#include "weft/kernels/cuda/cudnn_graph.h"

namespace weft::cuda {

/// Takes the place of a handle in heuristics and plans. `name`: "h100", of devices/h100.json.
inline BackendDescriptor absent_gpu(const std::string& name) {
  const std::string path = "tests/kernels/cuda/devices/" + name + ".json";
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  const std::string json = text.str();
  if (json.empty()) throw std::runtime_error("cannot read " + path);
  BackendDescriptor properties(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  properties
      .set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
           static_cast<std::int64_t>(json.size()), json.data())
      .finalize();
  return properties;
}

}  // namespace weft::cuda
