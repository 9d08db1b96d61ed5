// Tables that are looked into by position, a row for each value of an enum. Sized by the enum and
// held to IsByPosition by a static_assert, one in which a row is missing, or stands elsewhere, does
// not compile.
#pragma once

#include <array>
#include <cstddef>

namespace bucketd {

template <typename Row, size_t kCount, typename E>
constexpr bool IsByPosition(const std::array<Row, kCount>& rows, E Row::*value) {
  for (size_t i = 0; i < kCount; ++i) {
    if (rows[i].*value != static_cast<E>(i)) return false;
  }
  return true;
}

template <typename E>
struct Named {
  E value;
  const char* name;
};
template <typename E, size_t kCount>
constexpr bool IsByPosition(const std::array<Named<E>, kCount>& names) {
  return IsByPosition(names, &Named<E>::value) && names.back().name != nullptr;
}

}  // namespace bucketd
