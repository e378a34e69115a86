// A file of torch.save: its pickle, and its tensors one by one.
#pragma once

#include <memory>
#include <string>

#include "weft/io/source.h"
#include "weft/io/unpickler.h"
#include "weft/tensor/tensor.h"

namespace weft::io::detail {

/// A file whose values have been read, but none of its storages yet.
class PickleFile {
 public:
  /// Throws as load_pickle(). The source must live as long; `device` is that of the tensors.
  PickleFile(const Source& source, Device device, const std::string& name);
  ~PickleFile();

  const PickleGraph& graph() const;
  /// The tensor of an item of that kind; reads its storage if no other tensor has done it.
  Tensor tensor(const PickleItem& item) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace weft::io::detail
