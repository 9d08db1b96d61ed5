// A file layer for SQLite that gives every page of a database a checksum, so that damage anywhere
// in the file (tables, indexes, free lists) is noticed when the page is read, and never passes for
// a row that is not there. SQLite itself checks its log (WAL) only; a page's checksum is made when
// it is copied from there.
//
// The last kChecksumBytes of a page, which SQLite leaves to us ("reserved bytes"), hold the first
// bytes of SHA-256 over the page's number (big-endian, 4 bytes, from 1) and the rest of the page. A
// page of zeroes alone has no checksum: SQLite finds no page type in it.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace bucketd {

inline constexpr int kChecksumBytes = 16;

// Registers the layer on first use. Its name, for sqlite3_open_v2; null if SQLite has no file layer
// to build on. Databases opened with it must have kChecksumBytes reserved
// (SQLITE_FCNTL_RESERVE_BYTES before the first write): every other one is refused as damaged. A
// damaged page is SQLITE_CORRUPT.
const char* ChecksumVfs();

// Whether `page`, number `number` from 1, is as it was written.
bool PageIsWhole(absl::string_view page, uint32_t number);

}  // namespace bucketd
