import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.annotation.JsonProperty;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads recallflow's responses and prints a line for each, until it is told to stop. */
public final class RecallResponses {
  /** What this program needs of a response; fields that it does not know are passed over, as later versions add some. */
  @JsonIgnoreProperties(ignoreUnknown = true)
  record Response(
      @JsonProperty("query_id") String queryId, String status, List<Memory> memories, Failure error) {}

  @JsonIgnoreProperties(ignoreUnknown = true)
  record Memory(String id, int rank, String content) {}

  @JsonIgnoreProperties(ignoreUnknown = true)
  record Failure(String code, String message) {}

  private static final ObjectMapper JSON = new ObjectMapper();

  public static void main(String[] args) {
    if (args.length != 3) {
      System.err.println("usage: RecallResponses BOOTSTRAP_SERVERS TOPIC GROUP");
      System.exit(2);
    }
    Properties options = new Properties();
    options.put("bootstrap.servers", args[0]);
    options.put("group.id", args[2]);
    options.put("auto.offset.reset", "earliest");
    options.put("enable.auto.commit", "false");
    // Responses are in no transaction: another program's that is open must not hold them back.
    options.put("isolation.level", "read_uncommitted");
    ByteArrayDeserializer bytes = new ByteArrayDeserializer();
    KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(options, bytes, bytes);
    Thread reading = Thread.currentThread();
    Runtime.getRuntime()
        .addShutdownHook(
            new Thread(
                () -> {
                  consumer.wakeup();
                  try {
                    reading.join();
                  } catch (InterruptedException stopped) {
                    Thread.currentThread().interrupt();
                  }
                }));
    try (consumer) {
      consumer.subscribe(List.of(args[1]));
      while (true) {
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
          System.out.println(line(record.value()));
        }
        // Only now: what a kill interrupts is read again. A response is known by its query_id.
        consumer.commitSync();
      }
    } catch (WakeupException stopped) {
      // told to stop
    }
  }

  private static String line(byte[] value) {
    try {
      Response response = JSON.readValue(value, Response.class);
      if (response.error() != null) {
        return response.queryId() + " failed: " + response.error().code() + ": " + response.error().message();
      }
      if (response.memories() == null || response.memories().isEmpty()) {
        return response.queryId() + " " + response.status() + ": nothing";
      }
      Memory best = response.memories().get(0);
      return response.queryId() + " " + response.status() + ": " + best.id() + ": " + best.content();
    } catch (IOException notAResponse) {
      return "no response: " + notAResponse.getClass().getSimpleName();
    }
  }
}
