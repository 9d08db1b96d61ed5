// Writes seeds for the targets that read bytes: make_seeds FOLDER FILE.bir... makes
// FOLDER/graph/<name> and FOLDER/plan/<name>.{bin,json} of every text.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "passes/io/plan_json.h"
#include "passes/io/proto_io.h"
#include "passes/tools/opt.h"
#include "proto/graph.pb.h"
#include "tests/fuzz/fuzz_target.h"

int main(int argc, char** argv) {
  using namespace bucketd;
  for (int i = 2; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
    const OptInput input = fuzz::Must(ReadOptInput(text), argv[i]);
    const std::string folder = argv[1];
    const std::string name = std::filesystem::path(argv[i]).stem().string();
    std::filesystem::create_directories(folder + "/graph");
    std::filesystem::create_directories(folder + "/plan");
    v1::Graph message;
    GraphToProto(input.graph, message);
    std::ofstream(folder + "/graph/" + name, std::ios::binary) << message.SerializeAsString();
    const Plan plan = input.plan.has_value() ? *input.plan : ProgramOrder(input.graph);
    std::ofstream(folder + "/plan/" + name + ".bin", std::ios::binary)
        << SerializePlan(input.graph, plan);
    std::ofstream(folder + "/plan/" + name + ".json") << PlanToJson(input.graph, plan);
  }
}
