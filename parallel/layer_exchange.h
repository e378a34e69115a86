// LayerExchange: what ranks exchange before and after the calls of layers that compute with parts.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/autograd/dropout.h"
#include "weft/comm/group/process_group.h"
#include "weft/parallel/collectives.h"
#include "weft/parallel/layer_plan.h"

namespace weft::parallel {

class LayerExchange : public std::enable_shared_from_this<LayerExchange> {
 public:
  explicit LayerExchange(comm::ProcessGroup& of) : group(of.duplicate()), ranks(group) {}

  /// Registers the hooks of a layer whose parameters have been cut.
  void attach(const PartLayer& layer);
  /// Compares the ranks' gradients of a parameter that is not cut, until one is finite and not 0.
  void watch(const std::string& name, const Tensor& parameter);
  /// Call it at the beginning of each forward of the whole module.
  void begin() { last_.reset(); }

  const std::shared_ptr<comm::ProcessGroup> group;
  const Collectives ranks;

 private:
  // Numbers by which ranks compare tensors: the norm, the norm of some of the elements, and
  // projections of these on a few random directions.
  using Fingerprint = std::array<double, 6>;
  static Fingerprint fingerprint_of(const Tensor& x);
  static bool alike(const Fingerprint& a, const Fingerprint& b, double slack = 0);
  std::vector<Fingerprint> gathered(std::span<const Fingerprint> own) const;

  void column(const PartLayer& layer);
  void heads(const PartLayer& layer);
  void row(const PartLayer& layer);
  void words(const PartLayer& layer);
  void sequence(const PartLayer& layer);

  DrawnPart drawn(std::int64_t dim) const { return {dim, group->rank(), group->size()}; }
  // The whole x for a layer of which each rank computes a part; sums the ranks' gradients of x.
  Tensor whole_input(const Tensor& x, const Layout& layout) const;
  // The sum of the ranks' y, or a part of it.
  Tensor sum(const std::string& name, const Tensor& y, const Layout& layout) const;
  void check_argument(const std::string& name, const Layout& layout, std::int64_t features,
                      const Tensor& x);
  void compare_gradients();

  // The result of the last layer.
  struct Given {
    std::string name;
    Layout layout;
    Shape shape;
  };
  std::optional<Given> last_;
  std::set<std::string, std::less<>> checked_;  // layers whose arguments were compared

  struct Watched {
    std::string name;
    bool done = false;
    Fingerprint gradient = {};  // of this backward
  };
  std::vector<Watched> watched_;
  bool comparing_ = false;  // at the end of this backward
};

}  // namespace weft::parallel
