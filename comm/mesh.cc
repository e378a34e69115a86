#include "weft/comm/mesh.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "weft/core/base/error.h"

namespace weft::comm {
namespace {

constexpr const char* kOp = "mesh";

// "dp 2 x pp 2 x tp 2"
std::string text_of(const std::vector<MeshAxis>& axes) {
  std::string text;
  for (const MeshAxis& axis : axes) {
    text += (text.empty() ? "" : " x ") + axis.name + ' ' + std::to_string(axis.size);
  }
  return text.empty() ? "no axis" : text;
}

}  // namespace

Mesh::Mesh(std::shared_ptr<ProcessGroup> group, std::vector<MeshAxis> axes)
    : group_(std::move(group)), axes_(std::move(axes)), groups_(std::make_shared<Groups>()) {
  WEFT_CHECK(group_, InvalidArgument, kOp, "there is no process group");
  check();
  for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
    std::vector<bool> along(axes_.size());
    along[axis] = true;
    group_along(along);
  }
}

// The ranks compare their axes first, so if one must refuse them, all do.
void Mesh::check() const {
  const std::string mine = text_of(axes_);
  const std::vector<std::string> all = group_->all_gather_object(mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    WEFT_CHECK(all[rank] == all[0], InvalidArgument, kOp, "rank ",
               group_->number_in_run(static_cast<int>(rank)), " makes ", all[rank], ", rank ",
               group_->number_in_run(0), " makes ", all[0], "; give the same axes on every rank");
  }
  std::set<std::string> names;
  std::int64_t left = group_->size();
  for (const auto& [name, size] : axes_) {
    WEFT_CHECK(!name.empty() && names.insert(name).second, InvalidArgument, kOp, mine,
               ": each axis needs a name of its own, got \"", name,
               name.empty() ? "\"" : "\" twice");
    WEFT_CHECK(size >= 1, InvalidArgument, kOp, mine, ": axis ", name, " has size ", size,
               ", needs at least 1");
    left = left % size == 0 ? left / size : 0;
  }
  WEFT_CHECK(!axes_.empty(), InvalidArgument, kOp, "got no axis, expected at least one");
  WEFT_CHECK(left == 1, InvalidArgument, kOp, mine, " does not have place for ", group_->size(),
             group_->size() == 1 ? " rank" : " ranks",
             ": the product of the sizes must be their number");
}

std::size_t Mesh::index_of(std::string_view name) const {
  const auto axis = std::ranges::find(axes_, name, &MeshAxis::name);
  WEFT_CHECK(axis != axes_.end(), InvalidArgument, kOp, "there is no axis \"", name, "\" in ",
             text_of(axes_));
  return static_cast<std::size_t>(axis - axes_.begin());
}

int Mesh::coordinate(std::size_t axis, int rank) const {
  for (std::size_t inner = axes_.size() - 1; inner > axis; --inner) rank /= axes_[inner].size;
  return rank % axes_[axis].size;
}

int Mesh::coordinate(std::string_view axis, int rank) const {
  WEFT_CHECK(rank >= 0 && rank < group_->size(), InvalidArgument, kOp, "got rank ", rank,
             ", the mesh has ranks 0 to ", group_->size() - 1);
  return coordinate(index_of(axis), rank);
}

// Ranks are in one subgroup if they have the same coordinates along all other axes.
std::shared_ptr<ProcessGroup> Mesh::group_along(const std::vector<bool>& along) const {
  if (const auto known = groups_->find(along); known != groups_->end()) return known->second;
  std::map<std::vector<int>, std::vector<int>> parts;
  for (int rank = 0; rank < group_->size(); ++rank) {
    std::vector<int> others;
    for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
      if (!along[axis]) others.push_back(coordinate(axis, rank));
    }
    parts[others].push_back(rank);
  }
  std::string name;
  for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
    if (along[axis]) name += (name.empty() ? "" : " x ") + axes_[axis].name;
  }
  std::shared_ptr<ProcessGroup> mine = group_;
  for (const auto& [others, ranks] : parts) {
    if (parts.size() == 1) break;
    if (auto part = group_->subgroup(ranks, name)) mine = std::move(part);
  }
  return (*groups_)[along] = mine;
}

std::shared_ptr<ProcessGroup> Mesh::operator[](std::string_view axis) const {
  return (*this)[std::initializer_list<std::string_view>{axis}];
}

std::shared_ptr<ProcessGroup> Mesh::operator[](std::initializer_list<std::string_view> axes) const {
  std::vector<bool> along(axes_.size());
  for (const std::string_view axis : axes) along[index_of(axis)] = true;
  return group_along(along);
}

// The inner axis goes from left to right, all others from top to bottom.
std::string to_string(const Mesh& mesh) {
  const std::size_t inner = mesh.axes_.size() - 1;
  const auto label = [&](std::size_t axis, int coordinate) {
    return mesh.axes_[axis].name + ' ' + std::to_string(coordinate);
  };
  const auto widest = [&](std::size_t axis) {
    return label(axis, mesh.axes_[axis].size - 1).size();
  };
  const int ranks = mesh.group_->size(), columns = mesh.axes_[inner].size;
  const std::size_t width = std::max(widest(inner), std::to_string(ranks - 1).size());
  std::string text;
  const auto left = [&](std::size_t axis, const std::string& cell) {
    text += cell + std::string(widest(axis) - cell.size() + 2, ' ');
  };
  const auto right = [&](int column, const std::string& cell) {
    text += std::string(width - cell.size() + (column > 0 ? 2 : 0), ' ') + cell;
  };
  for (std::size_t axis = 0; axis < inner; ++axis) left(axis, "");
  for (int i = 0; i < columns; ++i) right(i, label(inner, i));
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank % columns == 0) {
      text += '\n';
      for (std::size_t axis = 0; axis < inner; ++axis) {
        left(axis, label(axis, mesh.coordinate(axis, rank)));
      }
    }
    right(rank % columns, std::to_string(rank));
  }
  return text + '\n';
}

}  // namespace weft::comm
