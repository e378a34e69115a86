#pragma once

namespace weft::testing {

/// Whether the program runs under AddressSanitizer or ThreadSanitizer: it takes many times as long
/// and as much memory, and has an ::operator new of its own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
inline constexpr bool kSanitized =
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace weft::testing
