// Plans: kernels prepared for one set of shapes. A backend's cache owns and lends them.
#pragma once

#include <atomic>
#include <concepts>
#include <cstddef>
#include <utility>

#include "weft/core/base/compiler.h"

namespace weft {

/// A kernel chosen and prepared for one set of shapes: the algorithm, the layout, the size of the
/// workspace. Several threads may use it at once, each with a workspace of its own.
class Plan {
 public:
  virtual ~Plan() = default;
  std::size_t workspace_bytes = 0;
};

/// A plan on loan. The cache drops plans that are not used for long, but never one on loan. To be
/// held for one operation; borrowing and giving back cost one atomic addition each.
template <class P>
class PlanRef {
 public:
  PlanRef() = default;
  /// The destructor subtracts 1 from *loans.
  PlanRef(const P* plan, std::atomic<int>* loans) : plan_(plan), loans_(loans) {}
  PlanRef(PlanRef&& other) noexcept
      : plan_(std::exchange(other.plan_, nullptr)), loans_(std::exchange(other.loans_, nullptr)) {}
  template <class Derived>
    requires std::convertible_to<Derived*, P*>
  PlanRef(PlanRef<Derived>&& other) noexcept
      : plan_(std::exchange(other.plan_, nullptr)), loans_(std::exchange(other.loans_, nullptr)) {}
  PlanRef& operator=(PlanRef&& other) noexcept {
    std::swap(plan_, other.plan_);
    std::swap(loans_, other.loans_);
    return *this;
  }
  ~PlanRef() {
    if (loans_) loans_->fetch_sub(1, std::memory_order_release);
  }

  const P* get() const { return plan_; }
  const P& operator*() const { return *plan_; }
  const P* operator->() const { return plan_; }
  explicit operator bool() const { return plan_ != nullptr; }

 private:
  template <class Other>
  friend class PlanRef;
  const P* plan_ = nullptr;
  std::atomic<int>* loans_ = nullptr;
};

}  // namespace weft
