#include "passes/text/scanner.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/charconv.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/status_macros.h"
#include "passes/ir/text.h"

namespace bucketd::text_internal {
namespace {

// Shortest decimals of doubles have at most this many characters.
constexpr size_t kMaxDigits = 1100;
// Sums and doubles of such figures stay finite.
constexpr double kMaxMeasure = 1e30;

bool LeadsWord(char c) { return absl::ascii_isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

bool IsWordChar(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '$' ||
         c == '-';
}

bool IsWord(absl::string_view s) {
  return !s.empty() && LeadsWord(s[0]) && std::all_of(s.begin(), s.end(), IsWordChar);
}

absl::Status Scanner::CheckBounds(absl::string_view text, int64_t max_bytes, int64_t max_line) {
  if (text.size() > static_cast<size_t>(max_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("1:1: the text has ", text.size(), " bytes; the limit is ", max_bytes));
  }
  int64_t line = 1;
  for (size_t from = 0; from < text.size(); ++line) {
    const size_t to = std::min(text.find('\n', from), text.size());
    if (to - from > static_cast<size_t>(max_line)) {
      return absl::InvalidArgumentError(
          absl::StrCat(line, ":1: this line has ", to - from, " bytes; the limit is ", max_line));
    }
    from = to + 1;
  }
  return absl::OkStatus();
}

void Scanner::SkipBlanks() {
  for (; at_ < text_.size(); ++at_) {
    const char c = text_[at_];
    if (c == ' ' || c == '\t' || c == '\r') continue;
    if (c != '/' || at_ + 1 >= text_.size() || text_[at_ + 1] != '/') return;
    at_ = std::min(text_.find('\n', at_), text_.size());
    return;
  }
}

void Scanner::SkipLines() {
  for (SkipBlanks(); at_ < text_.size() && text_[at_] == '\n'; SkipBlanks()) ++at_;
}

size_t Scanner::Here() {
  SkipBlanks();
  return at_;
}

bool Scanner::AtEnd() { return Here() == text_.size(); }

bool Scanner::AtLineEnd() { return AtEnd() || text_[at_] == '\n' || text_[at_] == '}'; }

char Scanner::Peek() { return AtEnd() ? '\0' : text_[at_]; }

bool Scanner::Accept(char c) {
  if (AtEnd() || text_[at_] != c) return false;
  ++at_;
  return true;
}

absl::Status Scanner::Expect(char c) {
  if (Accept(c)) return absl::OkStatus();
  return Expected(absl::StrCat("\"", absl::string_view(&c, 1), "\""));
}

absl::Status Scanner::ExpectLineEnd() {
  return AtLineEnd() ? absl::OkStatus() : Expected("the end of the line");
}

absl::string_view Scanner::Word() {
  if (AtEnd() || !LeadsWord(text_[at_])) return absl::string_view();
  const size_t from = at_;
  while (at_ < text_.size() && IsWordChar(text_[at_])) ++at_;
  return text_.substr(from, at_ - from);
}

absl::string_view Scanner::PeekWord() {
  const size_t from = Here();
  const absl::string_view word = Word();
  at_ = from;
  return word;
}

bool Scanner::AcceptWord(absl::string_view word) {
  const absl::string_view rest = text_.substr(Here());
  if (!absl::StartsWith(rest, word)) return false;
  if (rest.size() > word.size() && IsWordChar(rest[word.size()])) return false;
  at_ += word.size();
  return true;
}

absl::StatusOr<absl::string_view> Scanner::Text(absl::string_view what) {
  if (Peek() == '"') return Quoted(what);
  const size_t from = at_;
  while (at_ < text_.size() && IsWordChar(text_[at_])) ++at_;
  if (at_ == from) return Expected(what);
  return text_.substr(from, at_ - from);
}

absl::StatusOr<absl::string_view> Scanner::Quoted(absl::string_view what) {
  const size_t from = at_++;
  const size_t end = std::min(text_.find_first_of("\"\\\n", at_), text_.size());
  if (end < text_.size() && text_[end] == '"') {  // as it stands
    const absl::string_view plain = text_.substr(at_, end - at_);
    at_ = end + 1;
    return plain;
  }
  std::string& out = unescaped_.emplace_back();
  for (; at_ < text_.size() && text_[at_] != '\n'; ++at_) {
    char c = text_[at_];
    if (c == '"') {
      ++at_;
      return absl::string_view(out);
    }
    if (c == '\\') {
      c = at_ + 1 < text_.size() ? text_[++at_] : '\0';
      if (c != '"' && c != '\\') return ErrorAt(at_, "after \\ expected \" or \\");
    }
    out.push_back(c);
  }
  return ErrorAt(from, absl::StrCat(what, ": expected a closing \" on this line"));
}

absl::string_view Scanner::Digits() {
  const size_t from = Here();
  while (at_ < text_.size() && IsDigit(text_[at_])) ++at_;
  return text_.substr(from, at_ - from);
}

absl::StatusOr<int64_t> Scanner::Integer(absl::string_view what, int64_t most) {
  const absl::string_view digits = Digits();
  if (digits.empty()) return Expected(what);
  int64_t value = 0;
  for (const char c : digits) {
    if (__builtin_mul_overflow(value, 10, &value) ||
        __builtin_add_overflow(value, c - '0', &value) || value > most) {
      return ErrorAt(
          at_ - digits.size(),
          absl::StrCat(Printable(digits), " is too large: expected ", what, " up to ", most));
    }
  }
  return value;
}

absl::StatusOr<NodeLabel> Scanner::Label() {
  if (Peek() != '%') return Expected("%name");
  NodeLabel label;
  label.offset = at_++;
  const char c = at_ < text_.size() ? text_[at_] : '\0';
  if (IsDigit(c)) {
    ASSIGN_OR_RETURN(label.position, Integer("a node's position", INT32_MAX));
  } else if (c == '"') {
    ASSIGN_OR_RETURN(label.name, Quoted("name"));
  } else if (LeadsWord(c)) {
    label.name = Word();
  } else {
    return Expected("a node's name or position after %");
  }
  return label;
}

absl::Status Scanner::Labels(char open, char close,
                             absl::FunctionRef<absl::Status(const NodeLabel&)> f) {
  RETURN_IF_ERROR(Expect(open));
  SkipLines();
  if (Accept(close)) return absl::OkStatus();
  for (;;) {
    SkipLines();
    ASSIGN_OR_RETURN(const NodeLabel label, Label());
    RETURN_IF_ERROR(f(label));
    SkipLines();
    if (Accept(close)) return absl::OkStatus();
    RETURN_IF_ERROR(Expect(','));
  }
}

template <size_t n>
absl::StatusOr<double> Scanner::Measure(absl::string_view what, const Unit (&units)[n]) {
  const size_t from = Here();
  if (Digits().empty()) return Expected(what);
  if (at_ < text_.size() && text_[at_] == '.') {
    ++at_;
    if (at_ >= text_.size() || !IsDigit(text_[at_])) return Expected("a digit behind the point");
    Digits();
  }
  const absl::string_view digits = text_.substr(from, at_ - from);
  const size_t unit_from = at_;
  while (at_ < text_.size() && (LeadsWord(text_[at_]) || text_[at_] == '/')) ++at_;
  const absl::string_view unit = text_.substr(unit_from, at_ - unit_from);
  for (const Unit& known : units) {
    if (known.name != unit || digits.size() > kMaxDigits) continue;
    // The exponent is part of the number that is read, so that it is rounded once.
    const std::string number = absl::StrCat(digits, "e", known.exponent);
    double value = 0.0;
    const auto [end, error] = absl::from_chars(number.data(), number.data() + number.size(), value);
    if (error == std::errc() && value <= kMaxMeasure) return value;
  }
  std::string names = absl::StrJoin(
      units, ", ", [](std::string* out, const Unit& known) { absl::StrAppend(out, known.name); });
  return ErrorAt(
      from, absl::StrCat(what, ": expected a number with one of ", names,
                         " directly behind it, is ", Printable(text_.substr(from, at_ - from))));
}

absl::StatusOr<double> Scanner::Microseconds(absl::string_view what) {
  static constexpr Unit kUnits[] = {{"s", 6}, {"ms", 3}, {"us", 0}, {"ns", -3}, {"ps", -6}};
  return Measure(what, kUnits);
}

absl::StatusOr<double> Scanner::BytesPerSecond(absl::string_view what) {
  static constexpr Unit kUnits[] = {{"B/s", 0}, {"MB/s", 6}, {"GB/s", 9}};
  return Measure(what, kUnits);
}

absl::Status Scanner::ErrorAt(size_t offset, absl::string_view text) const {
  const absl::string_view before = text_.substr(0, offset);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t column = newline == absl::string_view::npos ? offset + 1 : offset - newline;
  return absl::InvalidArgumentError(absl::StrCat(line, ":", column, ": ", text));
}

absl::Status Scanner::Expected(absl::string_view what) {
  if (AtEnd()) return ErrorAt(at_, absl::StrCat("expected ", what, ", is the end of the text"));
  if (text_[at_] == '\n') {
    return ErrorAt(at_, absl::StrCat("expected ", what, ", is the end of the line"));
  }
  size_t end = at_ + 1;
  if (IsWordChar(text_[at_])) {
    while (end < text_.size() && IsWordChar(text_[end])) ++end;
  }
  return ErrorAt(at_, absl::StrCat("expected ", what, ", is \"",
                                   Printable(text_.substr(at_, end - at_)), "\""));
}

}  // namespace bucketd::text_internal
