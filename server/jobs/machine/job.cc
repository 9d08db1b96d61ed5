#include "server/jobs/machine/job.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "server/base/errors.h"
#include "server/costs/cost_names.h"
#include "server/jobs/machine/scope.h"

namespace bucketd {
namespace {

constexpr uint64_t kMaxGenerationStep = 1000;

absl::Status LostProfileError(const Job& job, absl::string_view asked, absl::string_view id,
                              const absl::Status& why) {
  const Reason reason =
      absl::IsUnavailable(why) ? Reason::kStoreUnavailable : Reason::kProfileUnreadable;
  return MakeError(
      reason, absl::StrCat("job \"", job.name.second, "\" runs its generation ", job.generation,
                           " with cost_profile \"", asked, "\" as ", id,
                           ", and that version cannot be had: ", why.message(),
                           "; no other one takes its place within a generation: begin a new one, "
                           "which resolves the name anew, or ask for a version by its number"));
}

}  // namespace

absl::Status Job::UseFixedProfile(PlanRequest& request, const Surroundings& around) {
  const auto entry = profiles
                         .try_emplace(request.profile_as_asked,
                                      FixedProfile{ProfileId(*request.profile), request.profile})
                         .first;
  FixedProfile& fixed = entry->second;
  if (fixed.profile == nullptr) {
    absl::StatusOr<ProfilePtr> found = around.Profile(fixed.id);
    if (!found.ok()) return LostProfileError(*this, entry->first, fixed.id, found.status());
    fixed.profile = *std::move(found);
  }
  if (fixed.profile != request.profile) SetProfile(request, fixed.profile);
  return absl::OkStatus();
}

absl::Status Job::CheckStep(uint64_t called) const {
  if (called <= generation || called - generation <= kMaxGenerationStep) return absl::OkStatus();
  return MakeError(
      Reason::kJobInvalid,
      absl::StrCat("job.generation: ", called, ", and job \"", name.second, "\" is in generation ",
                   generation, "; a generation counts restarts: at most ", kMaxGenerationStep,
                   " more (bucketctl pin JOB --release forgets the job)"));
}

JobMemory Job::Memory() const {
  JobMemory memory{.generation = generation,
                   .unplanned = unplanned,
                   .profiles = {},
                   .last_scope = last_agreed,
                   .ranks = ranks};
  for (const auto& [asked, profile] : profiles) memory.profiles.emplace_back(asked, profile.id);
  return memory;
}

Note NoteOn(const Job& job, const std::string& scope, absl::string_view text,
            std::vector<LogField> more) {
  more.insert(more.begin(), {{"tenant", job.name.first},
                             {"job", job.name.second},
                             {"generation", absl::StrCat(job.generation), true},
                             {"scope", scope}});
  return {.warn = false, .text = text, .fields = std::move(more), .call = {}};
}

}  // namespace bucketd
