// Reads the text form piece by piece and says where it stopped. Internal to passes/text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bucketd::text_internal {

// %name, %"any name" or %12.
struct NodeLabel {
  size_t offset = 0;
  int64_t position = -1;   // >= 0: by position, and there is no name
  absl::string_view name;  // lives as long as the scanner and its text
};

// Blanks are spaces, tabs, carriage returns and comments from // to the end of the line; a newline
// is none of them. No position ever goes back, so reading a text is linear in its length.
class Scanner {
 public:
  explicit Scanner(absl::string_view text) : text_(text) {}
  Scanner(const Scanner&) = delete;
  Scanner& operator=(const Scanner&) = delete;

  // INVALID_ARGUMENT if the text or one of its lines is longer than allowed.
  static absl::Status CheckBounds(absl::string_view text, int64_t max_bytes, int64_t max_line);

  void SkipLines();  // blanks and newlines
  // These skip blanks first.
  bool AtEnd();      // of the text
  bool AtLineEnd();  // also where the text or a block ends
  char Peek();       // '\0' at the end
  bool Accept(char c);
  absl::Status Expect(char c);
  absl::Status ExpectLineEnd();
  // Letters, digits and _ . $ -, not beginning with a digit, '.' or '-'. Empty if there is none.
  absl::string_view Word();
  absl::string_view PeekWord();  // reads nothing
  // A word that is exactly this; else nothing is read.
  bool AcceptWord(absl::string_view word);
  // A run of word characters (digits may lead), or a text in double quotes, in which \ stands
  // before " and \.
  absl::StatusOr<absl::string_view> Text(absl::string_view what);
  // Decimal digits. `most` is the largest that is accepted.
  absl::StatusOr<int64_t> Integer(absl::string_view what, int64_t most = INT64_MAX);
  // %...
  absl::StatusOr<NodeLabel> Label();
  // (%a, %b) or () between these; ends where `f` fails.
  absl::Status Labels(char open, char close, absl::FunctionRef<absl::Status(const NodeLabel&)> f);
  // 1.5ms, in microseconds: s, ms, us, ns or ps.
  absl::StatusOr<double> Microseconds(absl::string_view what);
  // 175GB/s, in bytes per second: B/s, MB/s or GB/s, powers of ten.
  absl::StatusOr<double> BytesPerSecond(absl::string_view what);

  size_t offset() const { return at_; }
  size_t Here();  // the same, behind blanks
  // "line:column: text", both from 1, columns in bytes.
  absl::Status ErrorAt(size_t offset, absl::string_view text) const;
  // The same, at what comes next and naming it.
  absl::Status Expected(absl::string_view what);

 private:
  struct Unit {
    absl::string_view name;
    int exponent;  // of ten
  };
  template <size_t n>
  absl::StatusOr<double> Measure(absl::string_view what, const Unit (&units)[n]);
  absl::StatusOr<absl::string_view> Quoted(absl::string_view what);
  absl::string_view Digits();
  void SkipBlanks();

  absl::string_view text_;
  size_t at_ = 0;
  std::deque<std::string> unescaped_;
};

bool IsWordChar(char c);
// Whether Word() reads all of it.
bool IsWord(absl::string_view s);

}  // namespace bucketd::text_internal
