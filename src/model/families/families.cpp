#include "model/families/family.h"

namespace glyd::model {
namespace {

constexpr const FamilyRules* kFamilies[] = {&kQwen2, &kQwen3, &kLlama};

}  // namespace

std::span<const FamilyRules* const> families() { return kFamilies; }

const char* family_name(Family family) {
  for (const FamilyRules* rules : kFamilies) {
    if (rules->family == family) return rules->model_type;
  }
  return "unknown";
}

}  // namespace glyd::model
