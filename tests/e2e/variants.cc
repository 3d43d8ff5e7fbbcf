#include "tests/e2e/variants.h"

#include <google/protobuf/descriptor.h>

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>

namespace kvstream {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Limits of the protocol and of the default config, each with the next.
constexpr uint64_t kNumbers[] = {0,
                                 1,
                                 2,
                                 15,
                                 16,
                                 63,
                                 64,
                                 65,
                                 4095,
                                 4096,
                                 4097,
                                 65535,
                                 65536,
                                 65537,
                                 262144,
                                 262145,
                                 600000,
                                 600001,
                                 1 << 20,
                                 1048577,
                                 4 << 20,
                                 4194305,
                                 8u << 30,
                                 INT32_MAX,
                                 1u << 31,
                                 UINT32_MAX - 1,
                                 UINT32_MAX,
                                 uint64_t{1} << 40,
                                 INT64_MAX,
                                 uint64_t{1} << 63,
                                 UINT64_MAX - 4095,
                                 UINT64_MAX - 1,
                                 UINT64_MAX};
constexpr size_t kLengths[] = {0,   1,   15,  16,  17,   63,   64,   65,   128,   129,
                               256, 257, 512, 513, 1024, 1025, 4096, 4097, 100000};
constexpr int kEnums[] = {-1, 0, 1, 2, 3, 999, INT32_MAX, INT32_MIN};
constexpr int kElements[] = {2, 17, 65, 5000};

class Walk {
 public:
  Walk(const Message& valid, const std::function<void(const std::string&, const Message&)>& use)
      : root_(valid.New()), use_(use) {
    root_->CopyFrom(valid);
  }

  void Run() { Visit(root_.get(), ""); }

 private:
  void Visit(Message* node, const std::string& path) {
    const std::unique_ptr<Message> before(node->New());
    before->CopyFrom(*node);
    for (int i = 0; i < node->GetDescriptor()->field_count(); ++i) {
      const FieldDescriptor* field = node->GetDescriptor()->field(i);
      const std::string name = path + field->name();
      const auto emit = [&](const std::string& change) {
        use_(name + " " + change, *root_);
        node->CopyFrom(*before);
      };
      node->GetReflection()->ClearField(node, field);
      emit("absent");
      if (field->is_map()) continue;
      if (field->is_repeated()) {
        Repeat(node, field, emit);
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        node->GetReflection()->MutableMessage(node, field)->Clear();
        emit("empty");
      } else {
        SetScalars(node, field, emit);
      }
      Descend(node, field, name);
      node->CopyFrom(*before);
    }
  }

  // Into the message, or the first of several.
  void Descend(Message* node, const FieldDescriptor* field, const std::string& name) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) return;
    const Reflection* reflection = node->GetReflection();
    if (!field->is_repeated()) {
      if (reflection->HasField(*node, field)) {
        Visit(reflection->MutableMessage(node, field), name + ".");
      }
    } else if (reflection->FieldSize(*node, field) > 0) {
      Visit(reflection->MutableRepeatedMessage(node, field, 0), name + "[0].");
    }
  }

  template <typename Emit>
  void SetScalars(Message* node, const FieldDescriptor* field, const Emit& emit) {
    const Reflection* reflection = node->GetReflection();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_UINT64:
        for (const uint64_t n : kNumbers) {
          reflection->SetUInt64(node, field, n);
          emit("= " + std::to_string(n));
        }
        return;
      case FieldDescriptor::CPPTYPE_UINT32:
        for (const uint64_t n : kNumbers) {
          if (n > std::numeric_limits<uint32_t>::max()) continue;
          reflection->SetUInt32(node, field, static_cast<uint32_t>(n));
          emit("= " + std::to_string(n));
        }
        return;
      case FieldDescriptor::CPPTYPE_BOOL:
        for (const bool value : {false, true}) {
          reflection->SetBool(node, field, value);
          emit(value ? "= true" : "= false");
        }
        return;
      case FieldDescriptor::CPPTYPE_ENUM:
        for (const int value : kEnums) {
          reflection->SetEnumValue(node, field, value);
          emit("= " + std::to_string(value));
        }
        return;
      case FieldDescriptor::CPPTYPE_STRING:
        for (const size_t length : kLengths) {
          reflection->SetString(node, field, std::string(length, 'x'));
          emit("of " + std::to_string(length) + " bytes");
          reflection->SetString(node, field, std::string(length, '\0'));
          emit("of " + std::to_string(length) + " zero bytes");
        }
        return;
      default:
        // A type that the protocol does not use yet.
        use_(field->full_name() + " has a type without variants", *root_);
        std::abort();
    }
  }

  template <typename Emit>
  void Repeat(Message* node, const FieldDescriptor* field, const Emit& emit) {
    const Reflection* reflection = node->GetReflection();
    for (const int elements : kElements) {
      for (int i = reflection->FieldSize(*node, field); i < elements; ++i) Append(node, field);
      emit("of " + std::to_string(elements) + " elements");
    }
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      reflection->AddMessage(node, field);
      emit("with an empty element");
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      for (const size_t length : kLengths) {
        reflection->AddString(node, field, std::string(length, 'x'));
        emit("with an element of " + std::to_string(length) + " bytes");
      }
    } else {
      for (const uint64_t n : kNumbers) {
        if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT64) {
          reflection->AddUInt64(node, field, n);
        } else {
          reflection->AddUInt32(node, field, static_cast<uint32_t>(n));
        }
        emit("with " + std::to_string(n));
      }
    }
  }

  // The first element once more, or a default one.
  static void Append(Message* node, const FieldDescriptor* field) {
    const Reflection* reflection = node->GetReflection();
    const bool first = reflection->FieldSize(*node, field) == 0;
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE: {
        Message* added = reflection->AddMessage(node, field);
        if (!first) added->CopyFrom(reflection->GetRepeatedMessage(*node, field, 0));
        return;
      }
      case FieldDescriptor::CPPTYPE_STRING:
        reflection->AddString(node, field,
                              first ? "" : reflection->GetRepeatedString(*node, field, 0));
        return;
      case FieldDescriptor::CPPTYPE_UINT64:
        reflection->AddUInt64(node, field,
                              first ? 0 : reflection->GetRepeatedUInt64(*node, field, 0));
        return;
      default:
        reflection->AddUInt32(node, field,
                              first ? 0 : reflection->GetRepeatedUInt32(*node, field, 0));
    }
  }

  const std::unique_ptr<Message> root_;
  const std::function<void(const std::string&, const Message&)>& use_;
};

}  // namespace

void ForEachVariant(const Message& valid,
                    const std::function<void(const std::string&, const Message&)>& use) {
  Walk(valid, use).Run();
}

}  // namespace kvstream
