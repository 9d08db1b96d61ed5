// What goes wrong in a simulated world, and what operators do in it, as the seed draws it.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "tests/server/simulation/world.h"

namespace bucketd::simulation {

class Faults {
 public:
  // All is well again at `calm`, but for what operators do, who go on until the end.
  Faults(World& world, bool any, Time calm);

  void Begin();
  void Operate();

 private:
  struct Trap {
    int64_t calls_left = 0;
    std::string call;  // "": any
    Engine::Moment moment{};
    Time pause{0};  // 0: it dies
  };

  void Draw(Time at);
  void SetTrap(Process& process, bool kill);
  void AtStore(Process& process, const char* call, Engine::Moment moment);
  void AtChanges(Process& process, const Changes& changes);
  void Promote();
  void SwitchOff();
  void SwitchOn();
  Node* Anyone();
  Time Ms(int64_t least, int64_t most);

  World& world_;
  Random random_;
  const bool any_;
  const Time calm_;
  int gamma_ = 1;
  bool off_ = false;
  int64_t switches_ = 0;  // that operators have asked for
  int switching_on_ = 0;  // that are under way: a process that is stopped may do it much later
  std::map<const Process*, Trap> traps_;
  int owners_to_stop_ = 0;  // with what they have decided
};

}  // namespace bucketd::simulation
