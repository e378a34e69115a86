// Kernels prepared for one set of shapes, and how a backend's cache lends them.
#pragma once

#include <atomic>
#include <concepts>
#include <cstddef>
#include <utility>

namespace weft {

/// A kernel chosen and prepared for one set of shapes: which algorithm, which layout, how much
/// scratch memory. Owned by the backend's cache, usable by several threads at once (each with its
/// own workspace).
class Plan {
 public:
  virtual ~Plan() = default;
  std::size_t workspace_bytes = 0;
};

/// A plan on loan: its cache, which forgets plans that are not used, keeps it meanwhile. Held for
/// one operation; lending and giving back cost an atomic addition each.
template <class P>
class PlanRef {
 public:
  PlanRef() = default;
  /// Gives back one of `loans` in the end.
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
