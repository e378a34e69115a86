// Reference counting without a control block: tensors, storages and tape nodes are freed by the
// thread that drops the last reference, with one atomic operation per copy.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "weft/core/base/compiler.h"

namespace weft {

class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;
  virtual ~RefCounted() = default;

  std::uint32_t use_count() const { return count_.load(std::memory_order_acquire); }

 private:
  template <class T>
  friend class intrusive_ptr;
  mutable std::atomic<std::uint32_t> count_{0};
};

template <class T>
class intrusive_ptr {
 public:
  intrusive_ptr() = default;
  intrusive_ptr(std::nullptr_t) {}
  explicit intrusive_ptr(T* p) : p_(p) { retain(); }
  intrusive_ptr(const intrusive_ptr& other) : p_(other.p_) { retain(); }
  intrusive_ptr(intrusive_ptr&& other) noexcept : p_(std::exchange(other.p_, nullptr)) {}
  template <class U>
    requires std::is_convertible_v<U*, T*>
  intrusive_ptr(intrusive_ptr<U> other) noexcept : p_(other.release()) {}
  intrusive_ptr& operator=(intrusive_ptr other) noexcept {
    std::swap(p_, other.p_);
    return *this;
  }
  ~intrusive_ptr() {
    if (p_ && p_->RefCounted::count_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete p_;
  }

  T* get() const { return p_; }
  T* operator->() const { return p_; }
  T& operator*() const { return *p_; }
  explicit operator bool() const { return p_ != nullptr; }
  void reset() { intrusive_ptr().swap(*this); }
  void swap(intrusive_ptr& other) noexcept { std::swap(p_, other.p_); }
  /// Gives up the pointer but keeps its reference counted.
  T* release() { return std::exchange(p_, nullptr); }
  friend bool operator==(const intrusive_ptr& a, const intrusive_ptr& b) { return a.p_ == b.p_; }

 private:
  void retain() {
    if (p_) p_->RefCounted::count_.fetch_add(1, std::memory_order_relaxed);
  }
  T* p_ = nullptr;
};

template <class T, class... Args>
intrusive_ptr<T> make_intrusive(Args&&... args) {
  return intrusive_ptr<T>(new T(std::forward<Args>(args)...));
}

}  // namespace weft
