// Mesh: the ranks of a group in a grid with named axes, and the subgroups along them.
//
//   const comm::Mesh mesh(group, {{"dp", 2}, {"pp", 2}, {"tp", 2}});
//   mesh["tp"];          // the group of this rank and those that differ from it only along tp
//   mesh[{"dp", "tp"}];  // ... along dp and tp
//
// The last axis is the innermost: its ranks have consecutive numbers. to_string(mesh):
//
//               tp 0  tp 1
//   dp 0  pp 0     0     1
//   dp 0  pp 1     2     3
//   dp 1  pp 0     4     5
//   dp 1  pp 1     6     7
#pragma once

#include <cstddef>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "weft/comm/group/process_group.h"

namespace weft::comm {

struct MeshAxis {
  std::string name;
  int size = 1;
};

/// A handle: copies have the same groups. As torch.distributed.device_mesh.DeviceMesh. From one
/// thread at a time.
class Mesh {
 public:
  /// All ranks of `group` call it: the subgroups along each axis are made here. Throws
  /// InvalidArgument, on every rank, when one gives other axes than rank 0, naming both; for no
  /// axis, a size below 1, a name that is empty or given twice, and for sizes whose product is not
  /// the number of ranks.
  Mesh(std::shared_ptr<ProcessGroup> group, std::vector<MeshAxis> axes);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  /// The whole mesh.
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }

  // The functions below throw InvalidArgument for an axis that the mesh does not have.

  /// The ranks that differ from this one only along this axis, in its order; the whole mesh's group
  /// itself if that is all ranks.
  std::shared_ptr<ProcessGroup> operator[](std::string_view axis) const;
  /// The ranks that differ from this one only along these axes, in the order of the mesh. The
  /// subgroups along several axes are made when they are first asked for, so all ranks of the mesh
  /// must ask then.
  std::shared_ptr<ProcessGroup> operator[](std::initializer_list<std::string_view> axes) const;

  int size(std::string_view axis) const { return axes_[index_of(axis)].size; }
  /// The coordinate along the axis of this rank, or of any rank of the mesh's group.
  int coordinate(std::string_view axis) const { return coordinate(axis, group_->rank()); }
  int coordinate(std::string_view axis, int rank) const;
  friend std::string to_string(const Mesh& mesh);

 private:
  using Groups = std::map<std::vector<bool>, std::shared_ptr<ProcessGroup>>;

  void check() const;
  std::size_t index_of(std::string_view axis) const;
  int coordinate(std::size_t axis, int rank) const;
  std::shared_ptr<ProcessGroup> group_along(const std::vector<bool>& along) const;

  std::shared_ptr<ProcessGroup> group_;
  std::vector<MeshAxis> axes_;
  std::shared_ptr<Groups> groups_;  // key: for each axis, whether the ranks differ
};

/// A picture of which rank is where, as above.
std::string to_string(const Mesh& mesh);

}  // namespace weft::comm
