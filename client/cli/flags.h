// Command lines with subcommands: what a program takes is said here, and parsed by CLI11, which
// flags.cc alone includes (its header costs seconds a unit).
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "client/cli/command_line.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace bucketd {

// One option, flag or positional argument of a Command. A handle, good as long as its CommandLine.
class Flag {
 public:
  explicit Flag(CLI::Option* option) : option_(option) {}

  // What stands for the value in the help: "GRAPH".
  Flag TypeName(const std::string& name) const;
  // The heading that it stands under in the help.
  Flag Group(const std::string& name) const;
  // The help does not show it.
  Flag Hidden() const;
  // The help shows the value that the variable has now.
  Flag ShowDefault() const;
  Flag Required() const;
  // Where the command line is silent, this environment variable speaks.
  Flag Env(const std::string& variable) const;
  // The same, on command lines that have `other`; what others leave in the environment breaks none.
  Flag EnvWith(const std::string& variable, const Flag& other) const;
  // The value is a whole number between the two, both included.
  Flag InRange(int64_t lowest, int64_t highest) const;
  // `wrong` says what is wrong with the value, "" if nothing.
  Flag Checked(std::function<std::string(const std::string& value)> wrong) const;
  // The value is the path of a file that is there.
  Flag File() const;
  // Each mention takes one value; words behind it are positional arguments.
  Flag OneValueEach() const;
  // Of several mentions the last counts; otherwise several are an error.
  Flag TakeLast() const;
  // By their names, which are declared already.
  Flag Needs(const std::string& other) const;
  Flag Excludes(std::initializer_list<const char*> others) const;

 private:
  CLI::Option* option_;
};

// A program or one of its subcommands. A handle, good as long as its CommandLine.
class Command {
 public:
  Command(CLI::App* app, int* exit) : app_(app), exit_(exit) {}

  // `name` is "--long" (or "--long,--alias") for an option, a word for a positional argument. The
  // variable keeps its value where the command line does not name it; it outlives the parsing.
  Flag AddOption(const std::string& name, std::string& value, const std::string& help) const;
  Flag AddOption(const std::string& name, int& value, const std::string& help) const;
  Flag AddOption(const std::string& name, int64_t& value, const std::string& help) const;
  Flag AddOption(const std::string& name, double& value, const std::string& help) const;
  Flag AddOption(const std::string& name, std::vector<std::string>& values,
                 const std::string& help) const;
  // Empty where the command line does not name it; "" is a value.
  Flag AddOption(const std::string& name, std::optional<std::string>& value,
                 const std::string& help) const;
  // `take` gets the text.
  Flag AddOption(const std::string& name, std::function<void(const std::string&)> take,
                 const std::string& help) const;
  Flag AddFlag(const std::string& name, bool& value, const std::string& help) const;

  // One that has subcommands wants one of them, and does nothing itself.
  Command AddCommand(const std::string& name, const std::string& about) const;
  // One with arguments of its own: `run` gets them when it was parsed, and says how to exit, or
  // what went wrong (Report).
  template <typename Args>
  struct WithArgs;
  template <typename Args, typename Result>
  WithArgs<Args> AddCommand(const std::string& name, const std::string& about,
                            Result (*run)(const Args&)) const;
  // The same command; the help lists what is added through this handle under a heading.
  Command Under(const std::string& heading) const;
  // Text below the help: examples.
  void Footer(const std::string& text) const;
  // What it does when it was parsed, and how the program then exits.
  void Does(std::function<int()> run) const;

 private:
  CLI::App* app_;
  int* exit_;  // of the CommandLine
  std::string heading_;
};

template <typename Args>
struct Command::WithArgs {
  Command command;
  Args& args;
};

template <typename Args, typename Result>
Command::WithArgs<Args> Command::AddCommand(const std::string& name, const std::string& about,
                                            Result (*run)(const Args&)) const {
  const auto args = std::make_shared<Args>();
  const Command command = AddCommand(name, about);
  command.Does([args, run] {
    if constexpr (std::is_same_v<Result, int>) {
      return run(*args);
    } else {
      return Report(run(*args));
    }
  });
  return {command, *args};
}

// The command line of a program whose work is in its subcommands.
class CommandLine {
 public:
  CommandLine(const std::string& about, const std::string& name);
  ~CommandLine();

  Command program() { return Command(app_.get(), &exit_); }
  // Parses main's arguments and does what they say. Returns how to exit: as the subcommand says, or
  // kUsage with a message that names the nearest word that is known.
  int Run(int argc, char** argv);

 private:
  std::unique_ptr<CLI::App> app_;
  int exit_ = 0;
};

}  // namespace bucketd
