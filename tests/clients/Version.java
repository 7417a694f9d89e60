import io.grpc.CallOptions;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.Marshaller;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollDomainSocketChannel;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollEventLoopGroup;
import io.grpc.netty.shaded.io.netty.channel.unix.DomainSocketAddress;
import io.grpc.stub.ClientCalls;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;

/** Version SOCKET: asks a CRI server for its version by grpc-java. */
class Version {
    static final Marshaller<byte[]> RAW = new Marshaller<>() {
        public InputStream stream(byte[] message) {
            return new ByteArrayInputStream(message);
        }

        public byte[] parse(InputStream stream) {
            try {
                return stream.readAllBytes();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    };

    public static void main(String[] arguments) {
        var method = MethodDescriptor.newBuilder(RAW, RAW)
                .setType(MethodType.UNARY)
                .setFullMethodName("runtime.v1.RuntimeService/Version")
                .build();
        var channel = NettyChannelBuilder.forAddress(new DomainSocketAddress(arguments[0]))
                .eventLoopGroup(new EpollEventLoopGroup(1))
                .channelType(EpollDomainSocketChannel.class)
                .usePlaintext()
                .build();
        var answer = ClientCalls.blockingUnaryCall(channel, method, CallOptions.DEFAULT, new byte[0]);
        System.out.println(new String(answer, StandardCharsets.ISO_8859_1));
        System.exit(0);
    }
}
