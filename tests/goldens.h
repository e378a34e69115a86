// PyTorch's results, from a safetensors file that a script next to the test has written:
//
//   const testing::Goldens goldens("tests/nn/loss_goldens");  // written by write_loss_goldens.py
//   EXPECT_TRUE(near_values(x.grad(), goldens["mse_grad0"], 1e-13));
#pragma once

#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "weft/io/safetensors.h"

namespace weft::testing {

/// Reads its file at the first use. Throws std::runtime_error if something is missing, naming the
/// file and the command that writes it.
class Goldens {
 public:
  /// `name`: the file's path below the root, without ".safetensors".
  explicit Goldens(std::string name) : name_(std::move(name)) { all().push_back(this); }
  Goldens(const Goldens&) = delete;
  Goldens& operator=(const Goldens&) = delete;

  /// The values of a tensor, converted exactly from the file's dtype.
  std::vector<double> operator[](const std::string& key) const {
    return tensor(key).to_vector<double>();
  }
  /// The values of KEY.0, KEY.1, ...
  std::vector<std::vector<double>> list(const std::string& key) const {
    std::vector<std::vector<double>> values{(*this)[key + ".0"]};
    while (tensors().contains(key + "." + std::to_string(values.size())))
      values.push_back((*this)[key + "." + std::to_string(values.size())]);
    return values;
  }
  Tensor tensor(const std::string& key) const {
    const auto found = tensors().find(key);
    if (found == tensors().end()) fail("has no '" + key + "'");
    return found->second;
  }
  /// All tensors of the file, on the CPU.
  const std::map<std::string, Tensor>& tensors() const {
    if (tensors_.empty()) {
      for (auto& [key, tensor] : io::load_safetensors(path()).tensors) tensors_[key] = tensor;
    }
    return tensors_;
  }

  /// The path of the file: beside the program, as in the folder that `./weft gpu-pack` fills, else
  /// in the working folder, which is the root of the tree or, under Bazel, of the test's data.
  std::string path() const {
    namespace fs = std::filesystem;
    for (const fs::path& root : {fs::read_symlink("/proc/self/exe").parent_path(), fs::path()}) {
      const fs::path file = root / (name_ + ".safetensors");
      if (fs::exists(file)) return file;
    }
    fail("is neither beside the program nor in the working folder");
  }

  /// All goldens of the program.
  static std::vector<const Goldens*>& all() {
    static std::vector<const Goldens*> goldens;
    return goldens;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    const std::filesystem::path path(name_);
    throw std::runtime_error(name_ + ".safetensors " + what + "; python3 " +
                             path.parent_path().string() + "/write_" + path.filename().string() +
                             ".py writes it");
  }

  const std::string name_;
  mutable std::map<std::string, Tensor> tensors_;
};

}  // namespace weft::testing
